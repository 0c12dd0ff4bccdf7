"""The node: what containerd, the bridge network and kubelet are told, each as one document."""

import subprocess
from pathlib import Path
from typing import Any

from testbed import network
from testbed.layout import Layout

PAUSE_IMAGE = "localhost/pause:1"
MAX_PODS = 500
"""Far above kubelet's own 110: warm pools of sandboxes are small pods."""
STREAM_IDLE_SECONDS = 4 * 3600
"""containerd's and kubelet's default for a silent exec stream."""


def containerd_config(layout: Layout) -> str:
    """TOML. Containers of pods only: no plug-in that needs a kernel module or a device."""
    return f"""version = 2
root = "{layout.state}/containerd"
state = "{layout.sockets}/containerd"
disabled_plugins = ["io.containerd.grpc.v1.btrfs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE no process may protect itself from the OOM killer, and runc fails trying.
  restrict_oom_score_adj = {str(not _may_protect_from_oom()).lower()}
  disable_apparmor = true
  disable_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  stream_idle_timeout = "{STREAM_IDLE_SECONDS}s"
  max_container_log_line_size = 262144
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."{layout.registry}"]
    endpoint = ["http://{layout.registry}"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{layout.state}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{_snapshotter(layout.state)}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def network_config(layout: Layout) -> dict[str, Any]:
    """Pods on the bridge, addresses from files of the cluster's state."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": layout.pod_network, "rangeStart": layout.first_pod_ip, "gateway": layout.host_ip}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": f"{layout.state}/cni-addresses",
    }
    bridge = {
        "type": "bridge",
        "bridge": network.BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": layout.name, "plugins": [bridge, ports, {"type": "loopback"}]}


def kubelet_config(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.host_ip,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{layout.pki}/kubelet.crt",
        "tlsPrivateKeyFile": f"{layout.pki}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.name}",
        "enforceNodeAllocatable": ["pods"],
        "failCgroupV1": False,
        "failSwapOn": False,
        "resolvConf": "",
        "clusterDNS": [layout.host_ip],
        "clusterDomain": "cluster.local",
        "imageGCHighThresholdPercent": 100,  # images come from files: what is collected would not come back
        "evictionHard": {"nodefs.available": "1Mi", "memory.available": "50Mi", "imagefs.available": "1Mi"},
        "maxPods": MAX_PODS,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "volumePluginDir": f"{layout.state}/kubelet/volume-plugins",
    }


def kube_proxy_config(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": layout.pod_network,
        "hostnameOverride": layout.node,
        "clientConnection": {"kubeconfig": str(layout.kubeconfig("kube-proxy"))},
        # Left at zero it touches no sysctl, which a container may not write.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def _may_protect_from_oom() -> bool:
    """CAP_SYS_RESOURCE, bit 24 of the effective set."""
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> 24 & 1)


def _snapshotter(state: Path) -> str:
    """overlayfs unless the state itself lies on one, as in a container: that cannot be an upper layer."""
    state.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["stat", "-f", "-c", "%T", state], capture_output=True, text=True, check=True)
    return "native" if done.stdout.strip() == "overlayfs" else "overlayfs"
