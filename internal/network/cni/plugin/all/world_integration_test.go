//go:build integration && e2e

package all_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/all"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// reference is the module whose plugins are the reference.
const reference = "github.com/containernetworking/plugins"

// referencePlugins builds the reference plugins once and returns their directory.
func referencePlugins(t testing.TB, release string) string {
	t.Helper()
	require.Root(t)
	if dir := os.Getenv("BERTH_CNI_REFERENCE"); dir != "" {
		return dir // a build of an earlier run
	}
	dir := t.TempDir()
	var packages []string
	for _, p := range []string{
		"main/bridge", "main/ptp", "main/loopback", "ipam/host-local", "ipam/static",
		"meta/portmap", "meta/bandwidth", "meta/firewall", "meta/tuning",
	} {
		packages = append(packages, reference+"/plugins/"+p+"@"+release)
	}
	cmd := exec.Command("go", append([]string{"install"}, packages...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=-mod=mod")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the reference plugins: %v\n%s", err, out)
	}
	return dir
}

// world is a host with its own network namespace and directories, whose plugins are the
// reference's programs or those in process.
type world struct {
	t         testing.TB
	dir       string
	inProcess bool
	host      string
	lib       *libcni.CNIConfig
	pods      int
}

func newWorld(t testing.TB, bin string, inProcess bool) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), inProcess: inProcess}
	w.host = w.netns("host")
	w.lib = libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(w.dir, "cache"), w)
	return w
}

func (w *world) netns(name string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := sysns.NewNetNS(path); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := sysns.RemoveNetNS(path); err != nil {
			w.t.Error(err)
		}
	})
	return path
}

// FindInPath implements invoke.Exec.
func (w *world) FindInPath(name string, paths []string) (string, error) {
	return invoke.FindInPath(name, paths)
}

// Decode implements invoke.Exec.
func (w *world) Decode(data []byte) (version.PluginInfo, error) {
	return (&version.PluginDecoder{}).Decode(data)
}

// ExecPlugin implements invoke.Exec.
func (w *world) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	p := all.ByType(filepath.Base(path))
	if w.inProcess && p != nil {
		if why := p.Cannot(stdin); why != "" {
			w.t.Errorf("the plugin %s %s", p.Type, why)
		}
		return p.Run(ctx, plugin.Environment{HostNetNS: w.host, Exec: w, Env: environ}, stdin)
	}
	var out, errOut bytes.Buffer
	err := sysns.InNetNS(w.host, func() error {
		cmd := exec.CommandContext(ctx, path)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), &out, &errOut
		return cmd.Run()
	})
	if err == nil {
		return out.Bytes(), nil
	}
	fault := &types.Error{}
	if json.Unmarshal(out.Bytes(), fault) == nil && fault.Msg != "" {
		return nil, fault
	}
	return nil, fmt.Errorf("%s: %w: %s %s", filepath.Base(path), err, out.Bytes(), errOut.Bytes())
}

// attachment is what a pod is attached with. %DIR% in the configuration is the world's directory.
type attachment struct {
	conf string
	args [][2]string
	caps map[string]any
}

// step is what one call did, in a form that does not depend on the world.
type step struct{ what, outcome string }

// play attaches, checks and detaches a pod, and describes each step and what is left of it.
func (w *world) play(ctx context.Context, a attachment) []step {
	w.t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(strings.ReplaceAll(a.conf, "%DIR%", w.dir)))
	if err != nil {
		w.t.Fatal(err, a.conf)
	}
	w.pods++
	pod := w.netns(fmt.Sprintf("pod%d", w.pods))
	rt := &libcni.RuntimeConf{
		ContainerID: fmt.Sprintf("pod%060d", w.pods), NetNS: pod, IfName: "eth0", Args: a.args, CapabilityArgs: a.caps,
	}
	names := newNames(w)
	var steps []step
	note := func(what string, result types.Result, err error) {
		outcome := describe(err)
		if result != nil {
			text, err := json.MarshalIndent(result, "", " ")
			if err != nil {
				w.t.Fatal(err)
			}
			outcome += "\n" + string(text)
		}
		steps = append(steps, step{what, names.plain(outcome)})
	}
	look := func(what string) {
		steps = append(steps, step{what + ": host", names.plain(w.look(w.host, names))}, step{what + ": pod", names.plain(w.look(pod, names))},
			step{what + ": files", names.plain(w.files())})
	}
	if err := w.lib.GetStatusNetworkList(ctx, list); err != nil {
		note("STATUS", nil, err)
	}
	// The pod's address is told apart from nothing: IPv6 duplicate detection would delay it.
	result, err := w.lib.AddNetworkList(ctx, list, rt)
	names.learn(w.host)
	names.learn(pod)
	note("ADD", result, err)
	look("after ADD")
	note("CHECK", nil, w.lib.CheckNetworkList(ctx, list, rt))
	if err == nil {
		again, err := w.lib.AddNetworkList(ctx, list, rt)
		note("ADD again", again, err)
	}
	note("DEL", nil, w.lib.DelNetworkList(ctx, list, rt))
	look("after DEL")
	note("DEL again", nil, w.lib.DelNetworkList(ctx, list, rt))
	gone := *rt
	gone.NetNS = pod + "-gone"
	note("DEL without the namespace", nil, w.lib.DelNetworkList(ctx, list, &gone))
	gone.NetNS = ""
	note("DEL without a path", nil, w.lib.DelNetworkList(ctx, list, &gone))
	note("GC", nil, w.lib.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}))
	return steps
}

func describe(err error) string {
	var fault *types.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &fault):
		return fmt.Sprintf("code %d: %s (%s)\nwhole: %v", fault.Code, fault.Msg, fault.Details, err)
	default:
		return "error: " + err.Error()
	}
}

// lookScript prints what plugins change in a network namespace.
const lookScript = `
echo "== links"; ip -d -j addr
for f in -4 -6; do echo "== routes $f"; ip $f -j route show table all; done
echo "== vlans"; bridge -j vlan
echo "== qdiscs"; q=$(tc qdisc); echo "$q"
case $q in *ingress*) for l in $(ip -o link | sed 's/^[0-9]*: \([^:@]*\).*/\1/'); do tc filter show dev $l parent ffff: 2>/dev/null; done;; esac
echo "== sysctls"; grep -r . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/ipv4/ip_forward /proc/sys/net/core/somaxconn 2>/dev/null | grep -v stable_secret | sort
[ $1 = pod ] && exit
echo "== firewall"; nft --stateless list ruleset 2>/dev/null; iptables-save; ip6tables-save
`

// look describes a network namespace.
func (w *world) look(netns string, n *names) string {
	w.t.Helper()
	var out []byte
	err := sysns.InNetNS(netns, func() (err error) {
		out, err = exec.Command("sh", "-c", lookScript, "look", strings.TrimRight(filepath.Base(netns), "0123456789")).CombinedOutput()
		return err
	})
	if err != nil {
		w.t.Fatalf("cannot look at %s: %v\n%s", netns, err, out)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "[{"):
			lines = append(lines, n.items(line)...)
		case strings.HasPrefix(line, "#"), strings.HasPrefix(line, "Error: Peer netns reference"): // of tc, now and then
		default:
			lines = append(lines, counted.ReplaceAllString(line, "[0:0]"))
		}
	}
	return emptyNAT.ReplaceAllString(strings.Join(sortTables(lines), "\n")+"\n", "")
}

// sortTables sorts the tables of nftables by their names: the reference's firewall makes those of the two families in
// a random order.
func sortTables(lines []string) []string {
	begin := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "table ") })
	if begin < 0 {
		return lines
	}
	end, tables := begin, []string(nil)
	for end < len(lines) && strings.HasPrefix(lines[end], "table ") {
		length := max(1, slices.Index(lines[end:], "}")+1)
		tables = append(tables, strings.Join(lines[end:end+length], "\n"))
		end += length
	}
	slices.Sort(tables)
	return slices.Concat(lines[:begin], tables, lines[end:])
}

// counted are the packets and bytes that a chain has seen, as iptables-save lists them. Hosts send some by themselves.
var counted = regexp.MustCompile(`\[[0-9]+:[0-9]+\]`)

// emptyNAT is a table without rules as nft and iptables-save list it. The reference's DEL makes one where the rules of
// masquerade are nftables' alone: it tries to remove those of iptables from it. It changes no packet.
var emptyNAT = regexp.MustCompile(`table ip6? nat \{\n\}\n|\*nat\n(:[A-Z]+ ACCEPT \[0:0\]\n)+COMMIT\n`)

// embedded is the configuration in a file of libcni's cache.
var embedded = regexp.MustCompile(`"config":"([A-Za-z0-9+/=]*)"`)

var keptMAC = regexp.MustCompile(`"mac": "[0-9a-f:]*"`)

// files describes the files of IPAM, of tuning and of libcni's cache.
func (w *world) files() string {
	w.t.Helper()
	var lines []string
	for _, top := range []string{"ipam", "tuning", "cache"} {
		err := filepath.WalkDir(filepath.Join(w.dir, top), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil //nolint:nilerr // not there
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			data, err := os.ReadFile(path)
			data = embedded.ReplaceAllFunc(data, func(field []byte) []byte {
				text, err := base64.StdEncoding.DecodeString(string(embedded.FindSubmatch(field)[1]))
				if err != nil {
					w.t.Fatal(err)
				}
				return text
			})
			if top == "tuning" {
				data = keptMAC.ReplaceAll(data, []byte(`"mac": "random"`)) // that of the link before
			}
			lines = append(lines, fmt.Sprintf("%s %v: %s", path, info.Mode(), data))
			return err
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return strings.Join(lines, "\n")
}

// names replaces what is random or a matter of time.
type names struct {
	w    *world
	pair [][2]string
}

func newNames(w *world) *names { return &names{w: w} }

// learn notes the random names and MACs of a namespace's links, in the order of their indexes.
func (n *names) learn(netns string) {
	n.w.t.Helper()
	var links []struct {
		Name string `json:"ifname"`
		MAC  string `json:"address"`
	}
	err := sysns.InNetNS(netns, func() error {
		out, err := exec.Command("ip", "-j", "link").Output()
		if err != nil {
			return err
		}
		return json.Unmarshal(out, &links)
	})
	if err != nil {
		n.w.t.Fatal(err)
	}
	for i, l := range links {
		place := fmt.Sprintf("%s-%d", strings.TrimRight(filepath.Base(netns), "0123456789"), i)
		if regexp.MustCompile(`^veth[0-9a-f]{8}$`).MatchString(l.Name) {
			n.pair = append(n.pair, [2]string{l.Name, "VETH-" + place})
		}
		if l.MAC != "00:00:00:00:00:00" && !strings.HasPrefix(l.MAC, "02:11:00:00:00:") { // the others are random
			n.pair = append(n.pair, [2]string{l.MAC, "MAC-" + place})
		}
	}
}

// goType is what an error of encoding/json says of a plugin's own types.
var goType = regexp.MustCompile(`Go struct field \S+ of type \S+`)

// formerMAC is a link's address in a rule of macspoofchk that tuning has changed since.
var formerMAC = regexp.MustCompile(`ether saddr [0-9a-f]{2}(:[0-9a-f]{2}){5}`)

// waits is the limit for the lock of iptables, in an error: berth's plugins have one, and the reference's wait for ever.
var waits = regexp.MustCompile(` --wait [0-9]+\b`)

var volatile = regexp.MustCompile(`pod[0-9]+-gone|veth[0-9a-f]{8}`)

// plain returns a text without what differs from world to world.
func (n *names) plain(text string) string {
	text = strings.ReplaceAll(text, n.w.dir, "%DIR%")
	for _, p := range n.pair {
		text = strings.ReplaceAll(text, p[0], p[1])
	}
	text = formerMAC.ReplaceAllStringFunc(text, func(rule string) string {
		if strings.HasPrefix(rule, "ether saddr 02:11:") { // set by a case
			return rule
		}
		return "ether saddr FORMER"
	})
	text = volatile.ReplaceAllString(waits.ReplaceAllString(text, " --wait"), "VOLATILE")
	return goType.ReplaceAllString(text, "Go struct field")
}

// items returns the items of a list in JSON, one a line, without what is a matter of time.
func (n *names) items(line string) []string {
	var list []map[string]any
	if err := json.Unmarshal([]byte(line), &list); err != nil {
		n.w.t.Fatalf("%v: %s", err, line)
	}
	var lines []string
	for _, item := range list {
		dst := fmt.Sprint(item["dst"])
		if strings.HasPrefix(dst, "fe80") || strings.HasPrefix(dst, "ff00") || strings.Contains(dst, ":") && item["table"] == "local" {
			continue // the kernel's, when a link has come up and its addresses are no longer tentative
		}
		scrub(item)
		text, err := json.Marshal(item)
		if err != nil {
			n.w.t.Fatal(err)
		}
		lines = append(lines, n.plain(string(text)))
	}
	slices.Sort(lines)
	return lines
}

// scrub removes what is a matter of time or of the order of creation.
func scrub(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, below := range v {
			switch key {
			case "ifindex", "link_index", "link_netnsid", "operstate", "hello_timer", "tcn_timer", "topology_change_timer", "gc_timer",
				"message_age_timer", "forward_delay_timer", "hold_timer", "id", "root_id", "bridge_id", "designated_bridge", "state", "tentative", "dadfailed":
				delete(v, key)
			case "flags":
				v[key] = slices.DeleteFunc(below.([]any), func(f any) bool { return f == "LOWER_UP" || f == "NO-CARRIER" || f == "linkdown" })
			case "addr_info":
				v[key] = slices.DeleteFunc(below.([]any), func(a any) bool {
					return strings.HasPrefix(fmt.Sprint(a.(map[string]any)["local"]), "fe80")
				})
				scrub(v[key])
			default:
				scrub(below)
			}
		}
	case []any:
		for _, below := range v {
			scrub(below)
		}
	}
}
