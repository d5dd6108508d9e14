//go:build bench

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/test/systemd"
)

// fullNode is a node of a current containerd with something of most kinds.
const fullNode = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime:
  name: containerd
  sandboxImage: berth.run/hello:demo
  config: {additions: {plugins."io.containerd.cri.v1.runtime".restrict_oom_score_adj: true}}
  assets:
  - @CONTAINERD@
  - @RUNC@
registries: [{host: docker.io, mirrors: [{url: "https://mirror.example"}]}, {host: "*", mirrors: [{url: "https://all.example"}]}]
network:
  mode: kubenet
  podCIDRs: [10.88.7.0/24]
  plugins: [@PLUGINS@]
  masquerade: {enabled: true, nonMasqueradeCIDRs: [10.0.0.0/8]}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
groups: [{name: helpers, gid: 3000}]
users: [{name: ops, uid: 2000, groups: [helpers], shell: /bin/sh}]
files:
- {path: /etc/own, type: directory, mode: "0750"}
- {path: /etc/own/file, content: x, owner: ops}
units:
- {name: own.service, content: "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

// byHand is the part of an apply that no program can avoid: it unpacks what apply installs, and
// starts what runs. An archive has the configuration and units.
const byHand = `tar -xf /opt/saved.tar -C / && mkdir -p /opt/cni/bin &&
tar -xzf /opt/assets/containerd-*.tar.gz -C /usr/local && tar -xzf /opt/assets/cni-plugins-*.tgz -C /opt/cni/bin &&
install /opt/assets/runc.* /usr/local/bin/runc && sync && systemctl daemon-reload &&
systemctl start berth-masquerade.service own.service containerd.service && ctr -n k8s.io images import /opt/hello-image.tar`

// rounds is how often both are timed.
const rounds = 7

// TestNode measures what an apply of a whole node costs beside the unpacking and the starts, and
// how long a plan without changes takes. The archives are on the machine's disk, the packages are
// installed.
func TestNode(t *testing.T) {
	assets, err := filepath.Abs("../../out/systemd-assets")
	if err != nil {
		t.Fatal(err)
	}
	m := systemd.BootNode(t, map[string]string{"/opt/assets": assets})
	m.Describe(systemd.WithAssets(t, assets, fullNode))
	m.Run("apt-get", "install", "-y", "-q", "--no-install-recommends", "conntrack", "ethtool", "socat", "libapparmor1")
	m.Run("/opt/berth", "node", "apply", "--yes")

	var plans []time.Duration
	for range rounds {
		plans = append(plans, timed(t, m, "/opt/berth node plan"))
	}
	m.Run("cp", "-a", "/var/lib/berth/node/assets", "/opt/cache")
	m.Run("bash", "-c", "cd / && tar -cf /opt/saved.tar etc/containerd etc/cni etc/berth etc/own etc/systemd/system/{containerd,own,berth-masquerade}.service")
	reset := func() { m.Run("/opt/berth", "node", "reset", "--yes") }
	reset()

	hand, apply := &peer{name: "by hand"}, &peer{name: "apply"}
	samples := map[*peer][]time.Duration{}
	for range rounds {
		samples[hand] = append(samples[hand], timed(t, m, byHand))
		m.Run("sh", "-c", `systemctl stop containerd own berth-masquerade && systemctl disable -q containerd own berth-masquerade
			for list in /opt/assets/containerd-*.tar.gz /opt/saved.tar; do tar -tf $list; done | sed 's,^bin/,usr/local/bin/,' | grep -v '/$' | (cd / && xargs rm -f)
			rm -rf /opt/cni /usr/local/bin/runc /etc/own /etc/cni /etc/containerd /var/lib/containerd /opt/containerd && systemctl daemon-reload`)
		m.Describe(systemd.WithAssets(t, assets, fullNode)) // which the archive has, too
		m.Run("sh", "-c", "mkdir -p /var/lib/berth/node && cp -a /opt/cache /var/lib/berth/node/assets")
		samples[apply] = append(samples[apply], timed(t, m, "/opt/berth node apply --yes"))
		reset()
	}
	table := &table{Title: fmt.Sprintf("A node of containerd (%d times each; want 1.5 times at most)", rounds), Load: load()}
	hand.beside = apply.name
	for _, p := range []*peer{hand, apply} {
		for _, took := range samples[p] {
			table.median(p.name, "unpack and start", "ms", milli(took))
		}
	}
	table.print(os.Stdout, infos([]*peer{hand, apply}))
	slices.Sort(plans)
	fmt.Printf("plan of what is as wanted: %.0f ms (want less than 300)\n", milli(plans[rounds/2]))
}

// timed returns how long a shell command takes in the machine.
func timed(t *testing.T, m *systemd.Machine, command string) time.Duration {
	t.Helper()
	out := m.Run("bash", "-c", "TIMEFORMAT='took %R'; time { "+command+" >/tmp/out 2>&1 || { cat /tmp/out; exit 1; }; }")
	seconds, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(out), "took ")), 64)
	if err != nil {
		t.Fatalf("no time in %q: %v", out, err)
	}
	return time.Duration(seconds * float64(time.Second))
}
