//! The pod that kpx itself runs in.

use std::fs;

/// Where the kubelet mounts what is of one pod alone: a file that tells where it comes from, in every container.
const MOUNTS: &[&str] = &["/etc/hosts", "/dev/termination-log"];

/// Returns the unique ids of the pods that this process runs in: none on a host. Fails where that cannot be told.
pub fn own_pods() -> Result<Vec<String>, String> {
    // Where the host's root is mounted, the host's own process is another one.
    let read = |path: &str| fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    let mut pods = of_mounts(&read("/proc/self/mountinfo")?);
    pods.extend(of_cgroups(&read("/proc/self/cgroup")?));
    pods.sort();
    pods.dedup();
    Ok(pods)
}

/// Reads `/proc/self/mountinfo`: of a mount the fourth word is where it comes from, the fifth where it is.
fn of_mounts(text: &str) -> Vec<String> {
    let uids = text.lines().filter_map(of_mount);
    uids.map(str::to_owned).collect()
}

fn of_mount(line: &str) -> Option<&str> {
    let mut words = line.split(' ').skip(3);
    let (from, at) = (words.next()?, words.next()?);
    let (_, rest) = from.split_once("pods/").filter(|_| MOUNTS.contains(&at))?;
    rest.split('/').next().filter(|uid| is_uid(uid))
}

/// Reads `/proc/self/cgroup`: the folder of a pod is `podUID`, or `…-podUID.slice` with underscores.
fn of_cgroups(text: &str) -> Vec<String> {
    let parts = text.lines().flat_map(|line| line.split('/'));
    let uids = parts.filter_map(|part| {
        let (_, uid) = part.rsplit_once("pod")?;
        let uid = uid.trim_end_matches(".slice").replace('_', "-");
        is_uid(&uid).then_some(uid)
    });
    uids.collect()
}

fn is_uid(text: &str) -> bool {
    // A static pod's is a digest without dashes.
    let digits = text.chars().filter(|c| *c != '-');
    text.len() >= 32
        && digits.clone().count() == 32
        && digits.clone().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f4b9c1e-6a0d-4d43-9c83-2a9d7b8f6e11";

    #[test]
    fn a_container_tells_by_its_mounts() {
        let other = "11111111-6a0d-4d43-9c83-2a9d7b8f6e11";
        // The host's mounts are there as well, where its root is mounted.
        let text = format!(
            "100 90 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
             101 90 8:1 /var/lib/kubelet/pods/{UID}/etc-hosts /etc/hosts rw,relatime - ext4 /dev/sda1 rw\n\
             102 90 0:50 / /host/var/lib/kubelet/pods/{other}/volumes/x rw - tmpfs tmpfs rw\n\
             103 90 8:1 /pods/{UID}/containers/kpx/1 /dev/termination-log rw - ext4 /dev/sdb1 rw\n"
        );
        assert_eq!(of_mounts(&text), [UID, UID]);
        assert_eq!(
            of_mounts("30 1 8:1 /etc/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"),
            [""; 0]
        );
    }

    #[test]
    fn a_container_tells_by_its_control_group() {
        let systemd = UID.replace('-', "_");
        for text in [
            format!("0::/kubepods/burstable/pod{UID}/abc\n"),
            format!("0::/kubepods.slice/kubepods-pod{systemd}.slice/cri-containerd-abc.scope\n"),
        ] {
            assert_eq!(of_cgroups(&text), [UID], "{text}");
        }
        assert_eq!(of_cgroups("0::/user.slice/podman-1.scope\n"), [""; 0]);
    }
}
