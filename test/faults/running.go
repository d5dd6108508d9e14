package faults

import "github.com/berthrun/berth/internal/finding"

const conflist = "/etc/cni/net.d/10-x.conflist"

// runtimes is a machine with two runtimes.
func runtimes() Machine {
	return Machine{
		Name: "Runtime", About: "a node with berth and another runtime", Doctor: doctor, Other: "containerd",
		Setup: `put /etc/containerd/config.toml <<< $'[grpc]\naddress = "%O"'
put ` + conflist + ` <<< '{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}]}'
serve`,
		Faults: []Fault{
			{
				"a runtime whose network is not ready", `: > %R`,
				"runtime", finding.Problem, "%O", "containerd 1.2.3 says: NetworkReady is false: Because: of the test", "install the cluster's network", false,
			},
			{
				"a kubelet of another runtime", `kube 'containerRuntimeEndpoint: unix://%O'`,
				"other-runtimes", finding.Warning, "unix://%O", "berth runs, and the kubelet talks to unix://%O", "containerRuntimeEndpoint: unix:///run/berth.sock", false,
			},
			{
				"another cgroup driver than that of the runtime", `kube 'cgroupDriver: systemd'`,
				"kubelet-runtime", finding.Problem, "cgroup driver", "the kubelet's cgroup driver is systemd (/var/lib/kubelet/config.yaml), that of containerd 1.2.3 is cgroupfs", "restart both", false,
			},
			{
				"a network of two runtimes", `sed -i 's/1.0.0/1.1.0/' ` + conflist,
				"other-runtimes", finding.Warning, conflist, "may be in use by containerd 1.2.3 at %O as well", `"disableGC": true`, false,
			},
			{
				"a range of pods with an address of the host", `ip addr add 10.9.0.5/32 dev lo`,
				"pod-ranges", finding.Problem, "10.9.0.0/24", "the range 10.9.0.0/24 of host-local in " + conflist + " contains 10.9.0.5, an address of the host on link lo", "choose another range", false,
			},
		},
		// Where the kernel has br_netfilter as a module, and where the program of bridge is older than version 1.1.
		Means: []string{"modules br_netfilter", "runtime /run/berth.sock"},
	}
}

// fits is a node whose kubelet is not configured as its berth is.
func fits() Machine {
	return Machine{
		Name: "Fit", About: "a node whose kubelet does not fit the berth that runs", Doctor: doctor,
		Setup: `mount -t tmpfs tmpfs root
conf network 'mode = "builtin"'
conf network 'subnets = ["10.2.0.0/25"]'
conf runtime 'cgroup_driver = "cgroupfs"'
serve
mkdir -p /var/lib/kubelet`,
		Faults: []Fault{
			{
				"another cgroup driver than berth's", `kube 'containerRuntimeEndpoint: unix:///run/berth.sock'; kube 'cgroupDriver: systemd'`,
				"kubelet-runtime", finding.Problem, "cgroup driver", "the kubelet's cgroup driver is systemd (/var/lib/kubelet/config.yaml), that of berth ", "restart both", false,
			},
			{
				"another subnet of pods than berth's", `kube 'podCIDR: 10.1.0.0/24'`,
				"kubelet-pod-cidr", finding.Problem, "podCIDR", "the kubelet's podCIDR is 10.1.0.0/24", "remove network.subnets", false,
			},
			{
				"no eviction for the image store's disk", `kube 'evictionHard: {nodefs.available: 10%}'`,
				"kubelet-eviction", finding.Warning, "imagefs.available", "%T/root is on a file system of its own", `imagefs.available: "15%"`, false,
			},
			{
				"a route into the subnet of pods", `ip route add 10.2.0.64/26 dev lo`,
				"pod-ranges", finding.Warning, "10.2.0.0/25", "overlaps the host's route to 10.2.0.64/26 on link lo", "or remove the route", false,
			},
			{
				"a socket for everybody", `chmod 666 /run/berth.sock`,
				"sockets", finding.Problem, "/run/berth.sock", "has mode 0666: a user of the machine can run containers as root", "chmod 660 /run/berth.sock", false,
			},
		},
		Means: []string{"modules br_netfilter"},
	}
}

// unreachable is a machine whose berth runs, and cannot be reached.
func unreachable() Machine {
	return Machine{
		Name: "Unreachable", About: "a berth that runs, and whose socket somebody removed", Doctor: doctor,
		Setup: "conf network 'mode = \"builtin\"'\nserve",
		Faults: []Fault{
			{
				"a socket that was removed", "rm /run/berth.sock",
				"daemon", finding.Problem, "/run/berth.sock", "has berth's directory %T/state, and does not answer on /run/berth.sock: that socket is not there", "systemctl restart berth", false,
			},
		},
		Means: []string{"runtime CRI socket"},
	}
}

// stopped is a machine whose berth hangs.
func stopped() Machine {
	return Machine{
		Name: "Stopped", About: "a berth that hangs", Doctor: doctor, Slow: true,
		Setup: "conf network 'mode = \"builtin\"'\nserve",
		Faults: []Fault{
			{
				"a berth that is stopped", "kill -STOP $BERTH",
				"daemon", finding.Problem, "/run/berth.sock", "it is T (stopped), by a signal or a debugger", "kill -CONT ", false,
			},
			{
				"a runtime that does not answer", "",
				"runtime", finding.Problem, "/run/berth.sock", "which listens there, has not answered within 10s: berth hangs", "systemctl restart berth: pods run on", false,
			},
		},
	}
}

// killed is a machine whose berth was killed, with what a loss of power leaves.
func killed() Machine {
	return Machine{
		Name: "Killed", About: "a berth that was killed, and files that a loss of power has damaged", Doctor: doctor,
		Setup: "conf network 'mode = \"builtin\"'\nserve\nTABLE=$(nft list tables inet | awk '{ print $3 }')",
		Faults: []Fault{
			{
				"a berth that was killed", "kill -KILL $BERTH; wait $BERTH 2> /dev/null || true; for try in $(seq 250); do if ! pgrep berth-superv > /dev/null; then break; fi; sleep 0.02; done",
				"runtime", finding.Problem, "/run/berth.sock", "exists, and no process listens on it: berth does not run", "systemctl start berth", false,
			},
			{
				"a database of images that is empty", ": > root/images/metadata.db",
				"image-files", finding.Warning, "%T/root/images/metadata.db", "is empty: the next start of berth moves both databases to the quarantine", "berth image fsck --repair", false,
			},
			{
				"a database of layers that is damaged", "head -c 200000 /dev/zero | tr '\\0' x > root/images/snapshots/metadata.db",
				"image-files", finding.Warning, "%T/root/images/snapshots/metadata.db", "is damaged", "berth image fsck --repair", false,
			},
			{
				"a link in the place of the store's content", "mv root/images/content sys/content; ln -s $T/sys/content root/images/content",
				"image-files", finding.Problem, "%T/root/images/content", "is no directory", "set root in berth.toml, or mount the disk at %T/root/images/content", false,
			},
			{
				"an image that is lost", `echo '{"version":1,"images":[{"names":["docker.io/library/gone:1"],"target":{},"noPull":true}]}' > root/images/lost.json`,
				"image-files", finding.Problem, "docker.io/library/gone:1", "the image store has lost image docker.io/library/gone:1", "berth image rm docker.io/library/gone:1", false,
			},
			{
				"an archive that cannot be imported", `echo x > sys/bad.tar; printf '{"version":1,"archives":[{"path":"%s","size":2,"time":%s,"inode":%s,"error":"the archive is truncated"}]}' "$T/sys/bad.tar" "$(stat -c %.9Y sys/bad.tar | tr -d .)" "$(stat -c %i sys/bad.tar)" > root/images/imported.json`,
				"image-files", finding.Warning, "%T/sys/bad.tar", "the archive %T/sys/bad.tar of image.import_dirs is not imported: the archive is truncated", "put a correct archive in its place", false,
			},
			{
				"a host port without a pod", `nft add element inet $TABLE ports4 '{ tcp . 81 : 10.255.255.9 . 8080 }'`,
				"leak-nftables", finding.Warning, "inet %N ports4 0600000000510000", "a host port of the pod with address 10.255.255.9", "start berth", true,
			},
			{
				"a checked link without a pod", `nft add element bridge $TABLE guarded '{ "vethc3" }'`,
				"leak-nftables", finding.Warning, "bridge %N guarded 76657468633300000000000000000000", "frames of the link vethc3", "nft delete table bridge %N", true,
			},
		},
	}
}
