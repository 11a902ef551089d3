//! Identifies the pod that kpx runs in.

use std::fs;

use kpx_node::evidence::processes::{is_uid, pods_of};

/// Mounts that the kubelet creates in every container from a folder of the pod.
const MOUNTS: &[&str] = &["/etc/hosts", "/dev/termination-log"];

/// Returns the UIDs of the pods that this process runs in: empty outside a pod. Fails if unknown.
pub fn own_pods() -> Result<Vec<String>, String> {
    // If the host's root is mounted, /proc of the host shows another process as self.
    let read = |path: &str| fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    let mut pods = of_mounts(&read("/proc/self/mountinfo")?);
    let groups = read("/proc/self/cgroup")?;
    pods.extend(groups.lines().flat_map(pods_of));
    pods.sort();
    pods.dedup();
    Ok(pods)
}

/// Parses `/proc/self/mountinfo`: the fourth word is the source of a mount, the fifth its target.
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

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f4b9c1e-6a0d-4d43-9c83-2a9d7b8f6e11";

    #[test]
    fn a_container_is_identified_by_its_mounts() {
        let other = "11111111-6a0d-4d43-9c83-2a9d7b8f6e11";
        // The host's mounts are included if its root is mounted.
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
}
