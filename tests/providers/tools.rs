//! Stand-ins for the tools of providers: programs that accept the documented command lines only.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::model::Model;
use crate::page::words;
use crate::shell::shell as run;
use crate::support::root;

/// A command line that a stand-in accepts.
pub(super) struct Tool {
    /// The command line, as in a page.
    pub(super) line: &'static str,
    /// What it does.
    effect: Effect,
}

/// The effect of a tool.
enum Effect {
    /// None that the model has.
    Nothing,
    /// It prints this.
    Prints(fn(&Model) -> String),
    /// It changes the model.
    Changes(fn(&mut Model)),
}
use Effect::{Changes, Nothing, Prints};

const fn tool(line: &'static str, effect: Effect) -> Tool {
    Tool { line, effect }
}

const ROLES: Tool = tool(
    "kubectl apply -f deploy/rbac.yaml -f deploy/rbac-migrate.yaml",
    Changes(|_| {
        for file in ["rbac.yaml", "rbac-migrate.yaml"] {
            assert!(root().join("deploy").join(file).exists());
        }
    }),
);

const DELETE_POD: Tool = tool(
    "kubectl -n kube-system delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName=NODE",
    Changes(Model::restart),
);

const PATCH_TO_NFTABLES: &str = "talosctl -n CONTROL_PLANE patch machineconfig -p '{\"cluster\":{\"proxy\":{\"mode\":\"nftables\"}}}'";
const PATCH_TO_IPTABLES: &str = "talosctl -n CONTROL_PLANE patch machineconfig -p '{\"cluster\":{\"proxy\":{\"mode\":\"iptables\"}}}'";
const ADD_ON_TO_NFTABLES: &str = "aws eks update-addon --cluster-name CLUSTER --addon-name kube-proxy \
    --configuration-values '{\"mode\":\"nftables\"}' --resolve-conflicts OVERWRITE";
const ADD_ON_TO_IPTABLES: &str = "aws eks update-addon --cluster-name CLUSTER --addon-name kube-proxy \
    --configuration-values '{\"mode\":\"iptables\"}' --resolve-conflicts OVERWRITE";

/// Returns the command lines that the tools of provider `id` accept.
pub(super) fn of(id: &str) -> Vec<Tool> {
    match id {
        "kubeadm" => vec![
            ROLES,
            DELETE_POD,
            tool(
                "kubectl -n kube-system get configmap kube-proxy -o yaml",
                Prints(map),
            ),
            tool("kubectl apply -f kube-proxy.yaml", Changes(apply_map)),
        ],
        "kubespray" | "kubeone" => vec![ROLES],
        "k3s" => vec![tool("systemctl restart k3s", Changes(Model::restart))],
        "rke2" => vec![tool(
            "systemctl restart rke2-server",
            Changes(Model::restart),
        )],
        "microk8s" => vec![tool(
            "snap restart microk8s.daemon-kubelite",
            Changes(Model::restart),
        )],
        "talos" => vec![
            tool(
                PATCH_TO_NFTABLES,
                Changes(|model| set_spec(model, "nftables")),
            ),
            tool(
                PATCH_TO_IPTABLES,
                Changes(|model| set_spec(model, "iptables")),
            ),
            tool(
                "talosctl -n CONTROL_PLANE upgrade-k8s --to VERSION",
                Changes(|model| {
                    model.flag.clone_from(&model.spec);
                    model.restart();
                }),
            ),
        ],
        "kops" => vec![
            tool(
                "kops edit cluster CLUSTER --set spec.kubeProxy.proxyMode=nftables",
                Changes(|model| set_spec(model, "nftables")),
            ),
            tool(
                "kops edit cluster CLUSTER --set spec.kubeProxy.proxyMode=iptables",
                Changes(|model| set_spec(model, "iptables")),
            ),
            tool("kops update cluster CLUSTER --yes", Nothing),
            tool(
                "kops rolling-update cluster CLUSTER --yes",
                Changes(Model::replace),
            ),
        ],
        "eks" => vec![
            ROLES,
            DELETE_POD,
            tool(
                ADD_ON_TO_NFTABLES,
                Changes(|model| model.set_map("nftables")),
            ),
            tool(
                ADD_ON_TO_IPTABLES,
                Changes(|model| model.set_map("iptables")),
            ),
            tool(
                "aws eks wait addon-active --cluster-name CLUSTER --addon-name kube-proxy",
                Nothing,
            ),
            tool(
                "kubectl -n kube-system get daemonset aws-node -o jsonpath='{.spec.template.spec.containers[0].image}'",
                Prints(|_| "amazon-k8s-cni:v1.23.1".to_owned()),
            ),
        ],
        "aks" => vec![
            tool("az extension add --name aks-preview", Nothing),
            tool(
                "az feature register --namespace Microsoft.ContainerService --name KubeProxyConfigurationPreview",
                Nothing,
            ),
            tool(
                "az aks update --name CLUSTER --resource-group GROUP --kube-proxy-config kube-proxy.json",
                Changes(set_profile),
            ),
        ],
        "gke" => vec![tool(
            "gcloud container clusters describe CLUSTER --format 'value(networkConfig.datapathProvider)'",
            Prints(|_| "LEGACY_DATAPATH\n".to_owned()),
        )],
        "openshift" => vec![tool(
            "oc get network.operator.openshift.io cluster -o jsonpath='{.spec.defaultNetwork.type} {.spec.deployKubeProxy}'",
            Prints(|_| "OVNKubernetes false".to_owned()),
        )],
        _ => panic!("{id}"),
    }
}

fn set_spec(model: &mut Model, mode: &str) {
    mode.clone_into(&mut model.spec);
}

/// Returns the ConfigMap as kubectl prints it.
fn map(model: &Model) -> String {
    let (name, key) = model.map();
    let lines: Vec<&str> = model.config.lines().collect();
    let text = lines.join("\n    ");
    format!(
        "apiVersion: v1\ndata:\n  {key}: |\n    {text}\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: kube-system\n"
    )
}

/// Applies the ConfigMap in the file of the operator.
fn apply_map(model: &mut Model) {
    let text = fs::read_to_string(model.work().join("kube-proxy.yaml")).unwrap();
    let object: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    let (name, key) = model.map();
    assert_eq!(object["metadata"]["name"], name);
    object["data"][key]
        .as_str()
        .unwrap()
        .clone_into(&mut model.config);
}

/// Sets the profile in the file of the operator; AKS then restarts kube-proxy.
fn set_profile(model: &mut Model) {
    let text = fs::read_to_string(model.work().join("kube-proxy.json")).unwrap();
    let profile: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(profile["enabled"], true);
    let mode = profile["mode"].as_str().unwrap();
    assert_eq!(mode, mode.to_uppercase());
    set_spec(model, &mode.to_lowercase());
    model.restart();
}

/// The program of every stand-in: compares its command line with those that it accepts, and prints the answer.
const STAND_IN: &str = r#"#!/bin/sh
here=${0%/*}/..
printf '%s\n' "${0##*/}" "$@" > "$here/call"
for known in "$here"/accepts/*.call; do
    if cmp -s "$here/call" "$known"; then
        cat "${known%.call}.answer"
        echo "$known" >> "$here/called"
        exit 0
    fi
done
echo "unexpected: ${0##*/} $*" >&2
exit 64
"#;

/// Runs `line` in a shell, with the stand-ins of `tools` on its PATH, and changes the model accordingly. Returns which tool
/// was called.
pub(super) fn shell(line: &str, tools: &[Tool], model: &mut Model) -> Option<usize> {
    let here = tempfile::tempdir().unwrap();
    let (bin, accepts) = (here.path().join("bin"), here.path().join("accepts"));
    for folder in [&bin, &accepts] {
        fs::create_dir(folder).unwrap();
    }
    for (number, tool) in tools.iter().enumerate() {
        let words = words(tool.line);
        let program = bin.join(&words[0]);
        fs::write(&program, STAND_IN).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let file = |ending: &str| accepts.join(format!("{number}.{ending}"));
        fs::write(file("call"), words.join("\n") + "\n").unwrap();
        let answer = match tool.effect {
            Prints(answer) => answer(model),
            Nothing | Changes(_) => String::new(),
        };
        fs::write(file("answer"), answer).unwrap();
    }
    // The node's files are the model's.
    let ran = run(line, &bin, &model.work(), &model.root(), &[]);
    assert!(ran.status.success(), "{line}: {ran:?}");
    let called = fs::read_to_string(here.path().join("called")).ok()?;
    assert_eq!(called.lines().count(), 1, "{line}: {called}");
    let name = Path::new(called.trim()).file_stem()?.to_str()?;
    let number: usize = name.parse().unwrap();
    if let Changes(change) = tools[number].effect {
        change(model);
    }
    Some(number)
}
