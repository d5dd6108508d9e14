package faults

import "github.com/berthrun/berth/internal/finding"

// leaking is a machine whose berth runs, with what no record owns.
func leaking() Machine {
	return Machine{
		Name: "Leak", About: "a berth that runs, and objects without a record", Doctor: doctor,
		Setup: `conf network 'mode = "builtin"'
serve
BRIDGE=$(ip -o link show type bridge | awk -F': ' '{ print $2 }')
ip netns add first && ip netns delete first # /run/netns becomes a mount with the first one
cgroup "/berth-$I"
mkdir -p "state/images/mapped/$L" ipam/net root/network/cni/cache/results
: > ipam/net/lock
put "root/network/cni/cache/results/net-$L-eth0" <<< '{}'
put ` + conflist + ` <<< '{"name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "%T/ipam"}}]}'`,
		Faults: append(leftToBerth(), repaired()...),
		Means:  []string{"leak-attachments %T/root/network/cni/attachments/%E.json"},
	}
}

// leftToBerth are leaks that doctor reports and does not repair.
func leftToBerth() []Fault {
	return []Fault{
		{
			"an address of a program that is not known", `printf '%s\r\neth0' "$(id d4)" > ipam/net/10.1.0.11`,
			"leak-addresses", finding.Warning, "net 10.1.0.11", "another runtime on this machine may have it", "rm %T/ipam/net/10.1.0.11", false,
		},
		{
			"an attachment without a sandbox", `put "root/pods/attachments/$(id e5).json" <<< "{\"version\":1,\"id\":\"$(id e5)\",\"record\":{\"id\":\"$(id e5)\"}}"`,
			"leak-attachments", finding.Warning, "%T/root/pods/attachments/%E.json", "its addresses and host ports are not free", "restart berth", false,
		},
		{
			"a DEL of a CNI plugin that fails", `put "root/network/cni/attachments/$(id e5).json" <<< "{\"version\":1,\"id\":\"$(id e5)\",\"record\":{\"attachment\":{\"sandboxID\":\"$(id e5)\",\"namespace\":\"default\",\"name\":\"web\"},\"conf\":{},\"deleting\":true,\"fault\":\"plugin type=\\\"nosuch\\\" failed (delete)\"}}"`,
			"network-detach", finding.Problem, "%E", "the pod default/web cannot be detached from its network, and keeps its addresses and host ports: plugin type=\"nosuch\" failed (delete)", "correct the CNI configuration", false,
		},
		{
			"a container of the supervisor", `put "state/supervisor/supervisor/$(id f6)/record.json" <<< '{}'`,
			"leak-containers", finding.Warning, "%F", "of which berth has no record", "restart berth", false,
		},
		{
			"a slice without processes", `cgroup "/berth_$I.slice/berth_$I-pod$L.slice"`,
			"leak-cgroups", finding.Warning, "/berth_%I.slice/berth_%I-pod%L.slice", "has no processes and no record", "systemctl stop berth_%I-pod%L.slice", false,
		},
		{
			"what a container has written", `put "root/images/containers/$L/record" <<< '{}'`,
			"leak-files", finding.Warning, "%T/root/images/containers/%L", "which has no record", "restart berth", false,
		},
		{
			"files of a sandbox", `put "root/pods/sandboxes/$L/hosts" <<< x`,
			"leak-files", finding.Warning, "%T/root/pods/sandboxes/%L", "which has no record", "restart berth", false,
		},
		{
			"files of a container", `put "root/pods/containers/$L/restored/pages-1.img" <<< x`,
			"leak-files", finding.Warning, "%T/root/pods/containers/%L", "which has no record", "restart berth", false,
		},
		{
			"a bundle", `put "state/engine/bundles/$L/config.json" <<< '{}'`,
			"leak-files", finding.Warning, "%T/state/engine/bundles/%L", "which has no record", "restart berth", false,
		},
		{
			"a directory for a sandbox's namespaces", `put "state/engine/sandboxes/$L/hosts" <<< x`,
			"leak-files", finding.Warning, "%T/state/engine/sandboxes/%L", "which has no record", "restart berth", false,
		},
	}
}

// repaired are leaks that doctor repairs.
func repaired() []Fault {
	return []Fault{
		{
			"a network namespace", `ip netns add "berth-$I-$L"`,
			"leak-netns", finding.Warning, "/run/netns/berth-%I-%L", "pins the network namespace of sandbox %L", "umount /run/netns/berth-%I-%L", true,
		},
		{
			"a root filesystem", `mkdir "state/images/rootfs/$L"; mount -t tmpfs leak "state/images/rootfs/$L"`,
			"leak-mounts", finding.Warning, "%T/state/images/rootfs/%L", "a root filesystem or image of %L", "umount -l %T/state/images/rootfs/%L", true,
		},
		{
			"a root filesystem of a user namespace", `mkdir "state/images/mapped/$L/rootfs"; mount -t tmpfs leak "state/images/mapped/$L/rootfs"`,
			"leak-mounts", finding.Warning, "%T/state/images/mapped/%L/rootfs", "is mounted", "umount -l", true,
		},
		{
			"a mounted image", `mkdir "state/images/rootfs/$L-0123"; mount -t tmpfs leak "state/images/rootfs/$L-0123"`,
			"leak-mounts", finding.Warning, "%T/state/images/rootfs/%L-0123", "is mounted", "umount -l", true,
		},
		{
			"a namespace of a sandbox", `: > "state/engine/sandboxes/$L/uts"; mount --bind /proc/self/ns/uts "state/engine/sandboxes/$L/uts"`,
			"leak-mounts", finding.Warning, "%T/state/engine/sandboxes/%L/uts", "a namespace, /dev/shm or volume of sandbox %L", "umount -l", true,
		},
		{
			"/dev/shm of a sandbox", `mkdir "state/engine/sandboxes/$L/shm"; mount -t tmpfs leak "state/engine/sandboxes/$L/shm"`,
			"leak-mounts", finding.Warning, "%T/state/engine/sandboxes/%L/shm", "is mounted", "umount -l", true,
		},
		{
			"a cgroup", `cgroup "/berth-$I/$(id a7)"`,
			"leak-cgroups", finding.Warning, "/berth-%I/%A", "has no processes and no record", "rmdir", true,
		},
		{
			"a process", `sleep 1000 & cgroup "/berth-$I/$L" $!`,
			"leak-processes", finding.Warning, "/berth-%I/%L", "(sleep) in the cgroup /berth-%I/%L", "kill them", true,
		},
		{
			"a link", `ip link add vethc3 type veth peer name peerc3; ip link set vethc3 alias "berth sandbox $L 10.255.255.1/32"; ip link set vethc3 master "$BRIDGE"`,
			"leak-links", finding.Warning, "vethc3", "is of sandbox %L", "ip link delete vethc3", true,
		},
		{
			"an address of this berth", `printf '%s\r\neth0' "$L" > ipam/net/10.1.0.9`,
			"leak-addresses", finding.Warning, "net 10.1.0.9", "is given out to sandbox %L of this berth", "within 15 minutes", true,
		},
		{
			"an address of nobody", `: > ipam/net/10.1.0.10`,
			"leak-addresses", finding.Warning, "net 10.1.0.10", "its file names no container", "within 15 minutes", true,
		},
	}
}
