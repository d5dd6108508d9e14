package all_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/utils"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/all"
)

// noIPAM is an IPAM plugin with nothing to do.
type noIPAM struct {
	version.PluginDecoder
	calls int
}

func (*noIPAM) FindInPath(name string, _ []string) (string, error) { return "/nonesuch/" + name, nil }

func (n *noIPAM) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	n.calls++
	return nil, nil
}

const (
	busy     = "busy"
	onePort  = `"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}]},` + previous
	previous = `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/nonesuch"}],
 "ips":[{"address":"10.1.0.2/24","interface":0},{"address":"fd01::2/64","interface":0}]}`
)

// fakeIPTables installs programs of iptables that write down how they are called, and with which sandbox in their
// environment. They list the rules. With the rules busy, those of IPv4 do not get the lock. It returns a function that reads the calls.
func fakeIPTables(t *testing.T, rules string) func() []string {
	t.Helper()
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	file := "rules"
	if rules == busy {
		file = busy
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"iptables", "ip6tables", "iptables-restore", "ip6tables-restore", "nft"} {
		script := fmt.Sprintf(`#!/bin/sh
case "$*" in *--version*) echo "iptables v1.8.9 (legacy)"; exit 0;; esac
echo "%[2]s $* [$CNI_COMMAND $CNI_CONTAINERID]" >>%[1]s/calls
[ %[2]s != iptables ] || [ ! -e %[1]s/busy ] || exit 4
case %[2]s in
*-restore) sed 's/^/< /' >>%[1]s/calls;;
nft) case "$*" in *list*) echo "Error: No such file or directory" >&2; exit 1;; esac; [ -e %[1]s/busy ];;
*) case "$*" in *" -S"*) cat %[1]s/rules;; *" -C "*) exit 1;; esac;;
esac
`, dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() []string {
		content, err := os.ReadFile(calls)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(content)), "\n")
	}
}

// TestAddressIsReleasedLast: a DEL that fails keeps the address, which no other pod gets while rules refer to it.
func TestAddressIsReleasedLast(t *testing.T) {
	for _, name := range []string{"bridge", "ptp"} {
		for _, rules := range []string{busy, "-P POSTROUTING ACCEPT\n"} {
			fakeIPTables(t, rules)
			ipam := &noIPAM{}
			env := append(os.Environ(), "CNI_COMMAND=DEL", "CNI_CONTAINERID=the-pod", "CNI_IFNAME=eth0", "CNI_PATH=/nonesuch", "CNI_NETNS=/nonesuch")
			_, err := all.ByType(name).Run(t.Context(), plugin.Environment{Exec: ipam, Env: env}, []byte(`{"cniVersion":"1.0.0","name":"net","ipMasq":true,"ipam":{"type":"none"}}`))
			if released := ipam.calls == 1; released == (rules == busy) || released != (err == nil) {
				t.Errorf("%s with the rules %q: the address is released: %t; %v", name, rules, released, err)
			}
		}
	}
}

func runVerb(t *testing.T, name, verb, config string) error {
	t.Helper()
	env := append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID=the-pod", "CNI_IFNAME=eth0", "CNI_PATH=/nonesuch", "CNI_NETNS=/nonesuch")
	_, err := all.ByType(name).Run(t.Context(), plugin.Environment{Exec: &noIPAM{}, Env: env}, []byte(config))
	return err
}

// TestProgramsDoNotWaitForever: each program of iptables waits for the lock with a limit, and those that change a table
// at once have the variables of the call, by which a daemon that starts again finds them.
func TestProgramsDoNotWaitForever(t *testing.T) {
	bounded := regexp.MustCompile(` (-w|--wait) [1-9][0-9]*\b`)
	for _, c := range []struct {
		plugin, config string
		verbs          []string
		atOnce         bool
	}{
		{"portmap", `{"cniVersion":"1.0.0","name":"net","snat":false,"backend":"iptables","runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}]},` + previous + `}`, []string{"ADD", "CHECK", "DEL"}, true},
		{"portmap", `{"cniVersion":"1.0.0","name":"net","snat":false,"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}]},` + previous + `}`, []string{"ADD", "CHECK", "DEL"}, true},
		{"firewall", `{"cniVersion":"1.0.0","name":"net","backend":"iptables",` + previous + `}`, []string{"ADD", "CHECK", "DEL"}, false},
		{"bridge", `{"cniVersion":"1.0.0","name":"net","ipMasq":true,"ipam":{"type":"none"}}`, []string{"DEL"}, true},
		{"ptp", `{"cniVersion":"1.0.0","name":"net","ipMasq":true,"ipam":{"type":"none"}}`, []string{"DEL"}, true},
	} {
		t.Run(c.plugin, func(t *testing.T) {
			calls := fakeIPTables(t, "-P POSTROUTING ACCEPT\n")
			for _, verb := range c.verbs {
				_ = runVerb(t, c.plugin, verb, c.config) // these programs are none of iptables: only the calls count
			}
			named := false
			for _, call := range calls() {
				if strings.HasPrefix(call, "< ") || strings.HasPrefix(call, "nft ") {
					continue
				}
				if !bounded.MatchString(call) {
					t.Errorf("%q waits for the lock without limit", call)
				}
				named = named || strings.HasSuffix(call, "[DEL the-pod]")
			}
			if named != c.atOnce {
				t.Errorf("a program has the variables of the call: %t, want %t", named, c.atOnce)
			}
		})
	}
}

// TestMasqueradeGoesWithoutTheLink: DEL removes the masquerade rules of a pod whose link and namespace a former DEL,
// which failed later, has removed; in both families.
func TestMasqueradeGoesWithoutTheLink(t *testing.T) {
	for _, name := range []string{"bridge", "ptp"} {
		for _, netns := range []string{"/nonesuch", ""} {
			t.Run(name+netns, func(t *testing.T) {
				own := utils.FormatChainName("net", "the-pod")
				rules := "-N " + own + "\n-A POSTROUTING -s 10.1.0.2/32 -m comment --comment \"a b\" -j " + own + "\n"
				calls := fakeIPTables(t, rules)
				env := append(os.Environ(), "CNI_COMMAND=DEL", "CNI_CONTAINERID=the-pod", "CNI_IFNAME=eth0", "CNI_PATH=/nonesuch", "CNI_NETNS="+netns)
				_, err := all.ByType(name).Run(t.Context(), plugin.Environment{Exec: &noIPAM{}, Env: env},
					[]byte(`{"cniVersion":"1.0.0","name":"net","ipMasq":true,"ipam":{"type":"none"}}`))
				if err != nil {
					t.Error(err)
				}
				var removed []string
				for _, call := range calls() {
					if strings.HasPrefix(call, "< ") {
						removed = append(removed, strings.TrimPrefix(call, "< "))
					}
				}
				want := []string{"*nat", `-D POSTROUTING -s 10.1.0.2/32 -m comment --comment "a b" -j ` + own, "-F " + own, "-X " + own, "COMMIT"}
				if !slices.Equal(removed, append(slices.Clone(want), want...)) {
					t.Errorf("%q, want twice %q", removed, want)
				}
			})
		}
	}
}

// TestBusyTableFailsDEL: a DEL that cannot look at the rules, because another program holds the lock, fails and is
// repeated. It leaves no rules behind.
func TestBusyTableFailsDEL(t *testing.T) {
	for _, c := range []struct{ plugin, options string }{
		{"portmap", `"backend":"iptables",` + onePort},
		{"portmap", onePort}, // the host's nftables is not a reason to leave the rules of iptables
		{"firewall", `"backend":"iptables",` + previous},
		{"bridge", `"ipMasq":true,"ipam":{"type":"none"}`},
		{"ptp", `"ipMasq":true,"ipam":{"type":"none"}`},
	} {
		fakeIPTables(t, busy)
		if err := runVerb(t, c.plugin, "DEL", `{"cniVersion":"1.0.0","name":"net",`+c.options+`}`); err == nil {
			t.Errorf("%s %s: DEL succeeds", c.plugin, c.options)
		}
	}
}

// TestUnstartedProgramFailsDEL: DEL fails if the host has iptables and cannot run it, for example without memory. Only
// a host that lacks iptables has no rules to remove.
func TestUnstartedProgramFailsDEL(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/nonesuch\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	for name, options := range map[string]string{
		"portmap": `"backend":"iptables",` + onePort, "bridge": `"ipMasq":true,"ipam":{"type":"none"}`, "ptp": `"ipMasq":true,"ipam":{"type":"none"}`,
	} {
		if err := runVerb(t, name, "DEL", `{"cniVersion":"1.0.0","name":"net",`+options+`}`); err == nil {
			t.Errorf("%s: DEL succeeds", name)
		}
	}
}

// TestPodWithoutPortsAsksNoProgram: portmap has nothing to do for a pod without host ports, and does not wait for a lock.
func TestPodWithoutPortsAsksNoProgram(t *testing.T) {
	calls := fakeIPTables(t, busy)
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		if err := runVerb(t, "portmap", verb, `{"cniVersion":"1.0.0","name":"net",`+previous+`}`); err != nil && verb != "ADD" {
			t.Errorf("%s: %v", verb, err) // ADD reports the namespace, which is none
		}
	}
	if called := calls(); called != nil {
		t.Errorf("%q", called)
	}
}

// TestRefusalsAreTheReferences: an ADD that is refused has the error of the reference's plugin, and leaves no more
// behind.
func TestRefusalsAreTheReferences(t *testing.T) {
	store := t.TempDir()
	for _, c := range []struct{ plugin, options, want string }{
		{"host-local", `"ipam":{"type":"host-local","dataDir":"` + store + `","subnet":"10.61.0.0/24","resolvConf":"/nonesuch"}`, "open /nonesuch: no such file or directory"},
		{"tuning", `"sysctl":7,` + previous, "json: cannot unmarshal number into Go struct field"},
		{"tuning", `"sysctl":{"net.core.somaxconn":7},` + previous, "json: cannot unmarshal number into Go struct field"},
		{"tuning", `"sysctl":{"net.a":"1","net.a":"2"},` + previous, "duplicated sysctl keys are not allowed"},
	} {
		if err := runVerb(t, c.plugin, "ADD", `{"cniVersion":"1.0.0","name":"net",`+c.options+`}`); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %s", c.plugin, c.options, err, c.want)
		}
	}
	if left, err := os.ReadDir(store); err != nil || len(left) > 0 {
		t.Errorf("left in the store: %v, %v", left, err)
	}
}
