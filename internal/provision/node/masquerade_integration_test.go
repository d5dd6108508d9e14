//go:build integration

package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/tasks"
	"github.com/berthrun/berth/internal/require"
)

// TestMasqueradeRulesLoad: nft loads the rules twice in a separate network namespace, with the same
// result. Other tables do not change.
func TestMasqueradeRulesLoad(t *testing.T) {
	require.Root(t)
	nft := require.Binary(t, "nft")
	unshare := require.Binary(t, "unshare")
	target, err := Build(load(t, "runtime: {name: berth}\nnetwork: {podCIDRs: [10.244.1.0/24, \"fd00:1::/64\"], masquerade: {enabled: true, nonMasqueradeCIDRs: [10.0.0.0/8, 192.168.0.0/16, \"fd00::/8\"]}}\n"),
		factsOf(t, "debian 12"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "masquerade.nft")
	if err := os.WriteFile(file, []byte(contentOf(target, masqueradeFile)), 0o600); err != nil {
		t.Fatal(err)
	}
	script := `set -e
"$0" add table ip other
"$0" -f "$1"; "$0" list ruleset > "$2"
"$0" -f "$1"; "$0" list ruleset | diff "$2" - >&2
cat "$2"`
	out, err := exec.CommandContext(t.Context(), unshare, "-n", "sh", "-c", script, nft, file, file+".first").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"table ip other", "table ip berth-node", "table ip6 berth-node", "10.0.0.0/8, 192.168.0.0/16", "saddr != fd00:1::/64"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if n := strings.Count(string(out), "masquerade"); n != 2 {
		t.Errorf("%d masquerade rules after two loads, want one a family:\n%s", n, out)
	}
}

// TestMasqueradeRulesOutliveFirewalls: our rules stay when a firewall with default drop creates its
// own tables and chains, as firewalld does at a reload.
func TestMasqueradeRulesOutliveFirewalls(t *testing.T) {
	require.Root(t)
	nft := require.Binary(t, "nft")
	unshare := require.Binary(t, "unshare")
	for _, name := range []string{"iptables", "ip6tables"} {
		require.Binary(t, name)
	}
	target, err := Build(load(t, "runtime: {name: berth}\nnetwork: {podCIDRs: [10.244.1.0/24, \"fd00:1::/64\"], masquerade: {enabled: true, nonMasqueradeCIDRs: [10.0.0.0/8, \"fd00::/8\"]}}\n"), factsOf(t, "debian 12"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "masquerade.nft")
	if err := os.WriteFile(file, []byte(contentOf(target, masqueradeFile)), 0o600); err != nil {
		t.Fatal(err)
	}
	const script = `set -e
ours() { "$0" list table ip berth-node; "$0" list table ip6 berth-node; }
firewalld() { "$0" -f - <<EOF
table inet firewalld
delete table inet firewalld
table inet firewalld { chain nat_POSTROUTING { type nat hook postrouting priority 110; policy accept; }; }
EOF
}
firewalld; "$0" -f "$1"; ours > "$2"
firewalld; ours | diff "$2" - >&2
for tables in iptables ip6tables; do
  for table in filter nat mangle; do $tables -t $table -F; $tables -t $table -X; done
  $tables -P FORWARD DROP
done
ours | diff "$2" - >&2
ours`
	out, err := exec.CommandContext(t.Context(), unshare, "-n", "sh", "-c", script, nft, file, file+".first").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n := strings.Count(string(out), "masquerade"); n != 2 {
		t.Errorf("%d rules, want one a family:\n%s", n, out)
	}
}

// contentOf returns the content of a file in a target.
func contentOf(target provision.Target, path string) string {
	for _, task := range target.Tasks {
		if file, ok := task.(tasks.File); ok && file.Path == path {
			return file.Content
		}
	}
	return ""
}
