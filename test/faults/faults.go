// Package faults has the faults that are planted on machines to test `berth doctor`: each with the shell commands that
// plant it, and what doctor must say. test/integration plants them; docs/doctor-faults.md is their list.
//
// A machine is a shell in mount, network and PID namespaces of its own. /run is empty, and what is written to /etc,
// /var/lib and /var/log is gone with the machine. All else is real: files, mounts, namespaces, cgroups, links, rules,
// processes, sockets, and berth itself. A value of the kernel that its machines share, such as fs.mount-max, is a file
// that is mounted over the kernel's.
package faults

import (
	"strings"

	"github.com/berthrun/berth/internal/finding"
)

// Fault is one of them. Its texts have %T for the machine's directory, %I and %N for the instance and the nftables tables
// of its berth, %O for the socket of the other runtime, %R for a file while which its network is not ready, and %A, %E, %F
// and %L for ids without a record.
type Fault struct {
	// Name is for people, and is that of its subtest.
	Name string
	// Plant are the commands.
	Plant string
	// Check is the check that finds it, with Level. Object is the whole object, Evidence and Fix are parts.
	Check                 string
	Level                 finding.Level
	Object, Evidence, Fix string
	// Repaired: --repair mends it.
	Repaired bool
}

// Machine is a machine with several faults at once.
type Machine struct {
	// Name is a part of the name of its test.
	Name string
	// About is for people: a sentence without its end.
	About string
	// Setup are commands before the faults. Doctor is the command of doctor, but for --repair and -o.
	Setup, Doctor string
	Faults        []Fault
	// Means are further findings that these faults cause, as "CHECK OBJECT".
	Means []string
	// Other is the name of another runtime that answers on the machine; empty for none.
	Other string
	// Slow: doctor waits there for longer than a test in CI may.
	Slow bool
}

// Machines are all.
func Machines() []Machine {
	return []Machine{files(), kubelets(), kernels(), disks(), namespaces(), joining(), runtimes(), fits(), leaking(), killed(), unreachable(), stopped()}
}

// In returns the texts of a fault on a machine: its directory, the names of its berth, the socket of another runtime, and the
// file while which the network of that runtime is not ready.
func In(dir, instance, tables, other, unready string) *strings.Replacer {
	id := func(two string) string { return strings.Repeat(two, 32) }
	return strings.NewReplacer("%T", dir, "%I", instance, "%N", tables, "%O", other, "%R", unready, "%A", id("a7"), "%E", id("e5"), "%F", id("f6"), "%L", id("c3"))
}

// prelude are the commands that make a machine without a fault. $T is its directory, $BIN has the programs.
const prelude = `set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
mount -t tmpfs tmpfs "$T"
cd "$T"
mkdir sys && mkdir sys/up sys/work conf root state
for over in etc var/lib var/log; do
	mkdir -p sys/up/$over sys/work/$over
	mount -t overlay overlay -o lowerdir=/$over,upperdir=sys/up/$over,workdir=sys/work/$over /$over
done
rm -rf /etc/berth /etc/cni/net.d /etc/crio /etc/containerd /etc/kubernetes /etc/subuid /etc/subgid /etc/systemd/system/kubelet.service* /var/lib/kubelet
mkdir -p /etc/berth /etc/cni/net.d
rm -f /etc/resolv.conf
echo nameserver 192.0.2.53 > /etc/resolv.conf
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY BERTH_ENDPOINT
PATH="$BIN:$PATH"
I=$(printf %s "$T/state" | sha256sum | head -c 8)
# Mounts of the host vanish here when the host removes their directories.
INHERITED=$(awk '{ print $1, $5 }' /proc/self/mountinfo)
TOPS=$(awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/self/mounts)
# id XX prints an id.
id() { printf "$1%.0s" $(seq 32); }
L=$(id c3)

# put FILE writes its input to a file.
put() { mkdir -p "$(dirname "$1")" && cat > "$1"; }
# conf TABLE LINE adds a line to a table of berth.toml; the table "" is the file's head.
conf() {
	printf '%s\n' "$2" >> "conf/_$1"
	: > /etc/berth/berth.toml
	for part in conf/_*; do
		name=${part#conf/_}
		if [ -n "$name" ]; then echo "[$name]" >> /etc/berth/berth.toml; fi
		cat "$part" >> /etc/berth/berth.toml
	done
}
# kube LINE adds a line to the kubelet's configuration.
kube() { mkdir -p /var/lib/kubelet && printf '%s\n' "$1" >> /var/lib/kubelet/config.yaml; }
# value FILE TEXT mounts a file with a text over one of the kernel's.
value() { name=sys/$(echo "$1" | tr / _) && printf '%s\n' "$2" > "$name" && mount --bind "$name" "$1"; }
# cgroup PATH [PID] makes a cgroup in each hierarchy, with a process.
cgroup() {
	for top in $TOPS; do
		case $top in */cpuset) continue ;; esac
		mkdir -p "$top$1"
		if [ -n "$2" ]; then echo "$2" > "$top$1/cgroup.procs"; fi
	done
}
# serve starts berth, and waits until it is ready.
serve() {
	berth serve --config /etc/berth/berth.toml >> log 2>&1 &
	BERTH=$!
	for try in $(seq 400); do
		if grep -q 'berth is ready' log; then return; fi
		sleep 0.02
	done
	cat log >&2
	exit 1
}
# state prints all that doctor could change. What is changed in /etc, /var/lib and /var/log is in sys/up. berth itself
# writes closed some time after its start, and node.json when it has seen a new CNI configuration.
state() {
	find "$T" "$T/root" /run -xdev ! -path "$T/log" ! -path "$T/out/*" ! -path "$T/sys/work/*" ! -name '*.lock' ! -name closed ! -name node.json -printf '%p %y %m %U %l\n' 2> /dev/null || true
	find "$T" /run -xdev -type f ! -path "$T/log" ! -path "$T/out/*" ! -path "$T/sys/work/*" ! -name closed ! -name node.json -exec cksum {} + 2> /dev/null || true
	INHERITED=$INHERITED awk 'BEGIN { n = split(ENVIRON["INHERITED"], all, "\n"); for (i = 1; i <= n; i++) inherited[all[i]] }
		!($1 " " $5 in inherited) { print "mount", $5, $6, $(NF-2), $(NF-1) }' /proc/self/mountinfo
	ip -o link
	nft list ruleset
	cat /proc/sys/net/ipv4/ip_forward
	for top in $TOPS; do printf '%s\n' "$top"/berth?"$I"* "$top"/berth?"$I"*/*/; done
	pgrep -al sleep || true
}
# clean ends all processes of the machine, and removes the cgroups that they leave.
clean() {
	trap - EXIT
	if [ $$ = 1 ]; then kill -KILL -1 2> /dev/null || true; fi # of the PID namespace
	wait
	for top in $TOPS; do
		for try in 1 2 3 4 5 6 7 8 9; do
			if find "$top" -maxdepth 3 -depth -type d -path "*berth?$I*" -exec rmdir {} + 2> /dev/null; then break; fi
			sleep 0.02
		done
	done
}
trap clean EXIT
value /proc/swaps 'Filename Type Size Used Priority'
mkdir out
conf "" "listen = 'unix:///run/berth.sock'"
conf "" "root = '$T/root'"
conf "" "state = '$T/state'"
`

// Script returns the commands that make a machine, plant its faults, and run doctor before, after, with --repair and
// again. The results are in its output: each document of JSON, and differences of the machine on lines of their own.
func (m Machine) Script() string {
	var text strings.Builder
	text.WriteString(prelude)
	text.WriteString(m.Setup + "\n")
	text.WriteString("doctor() { " + m.Doctor + ` "$@" -o json 2>> out/errors || test $? = 1; }
doctor > out/well.json
`)
	for _, repaired := range []bool{false, true} {
		for _, f := range m.Faults {
			if f.Repaired == repaired {
				text.WriteString("# " + f.Name + "\n" + f.Plant + "\n")
			}
		}
		if !repaired {
			text.WriteString("state > out/kept\n")
		}
	}
	text.WriteString(`state > out/planted
doctor > out/found.json
state > out/examined
diff out/planted out/examined > out/examination || true
`)
	if m.Slow {
		text.WriteString("echo [] | tee out/repaired.json > out/after.json\n: > out/repair\n")
	} else {
		text.WriteString(`doctor --repair > out/repaired.json
sleep 0.05
state > out/mended
diff out/kept out/mended > out/repair || true
doctor > out/after.json
`)
	}
	text.WriteString("tar -C out -c well.json found.json repaired.json after.json examination repair errors\n")
	return text.String()
}

// doctor is the command for the berth of the machine.
const doctor = "berth doctor --config /etc/berth/berth.toml"
