//go:build integration

package cni_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/require"
)

// await waits until a condition of the background's work holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(require.Patience(15 * time.Second)); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

// newest is a configuration of a version with all verbs.
func newest() string { return strings.Replace(fakeConf, "1.0.0", "1.1.0", 1) }

func answer(version string) string { return strings.Replace(okResult, "1.0.0", version, 1) }

// TestCheck: CHECK gets what ADD got and its result. A fault is reported and changes nothing; an
// attachment that cannot be checked says why.
func TestCheck(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `case $CNI_COMMAND in ADD) `+answer("1.1.0")+`;; CHECK) [ ! -e `+l.path("broken")+` ] || { echo '{"code":100,"msg":"the route is gone"}'; exit 1; };; esac`)
	l.write("conf/10-fake.conflist", newest(), 0o644)
	n := l.open(l.config())
	att := l.pod()
	if _, err := n.Attach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	all, err := n.Check(t.Context(), []string{att.SandboxID})
	if err != nil || len(all) != 1 || all[0].Fault != nil || all[0].Skipped != "" || all[0].Network != "fake-net" || all[0].Interface != "eth0" {
		t.Fatalf("%+v, %v", all, err)
	}
	data, err := os.ReadFile(l.path("input.CHECK"))
	if err != nil || !strings.Contains(string(data), `"prevResult":{`) || !strings.Contains(string(data), "10.1.2.3/24") {
		t.Errorf("CHECK got %s, %v", data, err)
	}
	l.write("broken", "", 0o644)
	if all, err = n.Check(t.Context(), nil); err != nil || len(all) != 1 || all[0].Fault == nil || !strings.Contains(all[0].Fault.Error(), "the route is gone") || !strings.Contains(all[0].Fault.Error(), "recreate the pod") {
		t.Errorf("a plugin that finds a fault: %+v, %v", all, err)
	}
	if _, err := n.Check(t.Context(), []string{"absent"}); !errors.Is(err, errs.NotFound) {
		t.Errorf("a sandbox that is not attached: %v, want kind NotFound", err)
	}
	n.Close()

	// The next process checks what it adopts, and leaves it as it is.
	n = l.open(l.config())
	if err := n.GC(t.Context(), []string{att.SandboxID}); err != nil {
		t.Fatal(err)
	}
	await(t, "the check of adopted pods", func() bool { return strings.Contains(n.Info()["failedChecks"], "the route is gone") })
	if l.records() != 1 || strings.Contains(l.verbs(), "DEL") {
		t.Errorf("a failed check changed the attachment: %s", l.verbs())
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
	n.Close()

	versionOf := map[string]string{"has no CHECK": "0.3.1", "disableCheck": "1.1.0"}
	for why, conf := range map[string]string{
		"has no CHECK": strings.Replace(fakeConf, "1.0.0", "0.3.1", 1),
		"disableCheck": strings.Replace(newest(), `"name"`, `"disableCheck":true,"name"`, 1),
	} {
		l.plugin("fake", `[ $CNI_COMMAND != ADD ] || `+answer(versionOf[why]))
		l.write("conf/10-fake.conflist", conf, 0o644)
		n = l.open(l.config())
		att = l.pod()
		if _, err := n.Attach(t.Context(), att); err != nil {
			t.Fatal(err)
		}
		if all, err = n.Check(t.Context(), nil); err != nil || len(all) != 1 || all[0].Fault != nil || !strings.Contains(all[0].Skipped, why) {
			t.Errorf("%s: %+v, %v", why, all, err)
		}
		if err := n.Detach(t.Context(), att); err != nil {
			t.Error(err)
		}
		n.Close()
	}
}

// TestCheckWithoutResult: plugins cannot check without the result of ADD; that is no fault of the pod.
func TestCheckWithoutResult(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `case $CNI_COMMAND in ADD) `+answer("1.1.0")+`;; CHECK) exit 1;; esac`)
	l.write("conf/10-fake.conflist", newest(), 0o644)
	n := l.open(l.config())
	defer n.Close()
	att := l.pod()
	if _, err := n.Attach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(l.path("root", "cache")); err != nil {
		t.Fatal(err)
	}
	all, err := n.Check(t.Context(), nil)
	if err != nil || len(all) != 1 || all[0].Fault != nil || !strings.Contains(all[0].Skipped, "no result") {
		t.Errorf("%+v, %v", all, err)
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
}

// TestGCGetsTheKnownAttachments: GC names all attachments with a record, also those that are not
// attached yet, and disableGC is honoured.
func TestGCGetsTheKnownAttachments(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `[ $CNI_COMMAND != ADD ] || { [ ! -e `+l.path("fail")+` ] || exit 1; `+answer("1.1.0")+`; }`)
	l.write("conf/10-fake.conflist", newest(), 0o644)
	n := l.open(l.config())
	attached, failed := l.pod(), l.pod()
	if _, err := n.Attach(t.Context(), attached); err != nil {
		t.Fatal(err)
	}
	l.write("fail", "", 0o644)
	if _, err := n.Attach(t.Context(), failed); err == nil {
		t.Fatal("ADD did not fail")
	}
	if err := n.GC(t.Context(), []string{attached.SandboxID, failed.SandboxID}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(l.path("input.GC"))
	if err != nil {
		t.Fatal(err)
	}
	var input struct {
		Valid []struct{ ContainerID, IfName string } `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(data, &input); err != nil || len(input.Valid) != 2 {
		t.Fatalf("GC got %s, %v", data, err)
	}
	for _, v := range input.Valid {
		if v.IfName != "eth0" || v.ContainerID != attached.SandboxID && v.ContainerID != failed.SandboxID {
			t.Errorf("GC got %+v", v)
		}
	}
	for _, att := range []*network.Attachment{attached, failed} {
		if err := n.Detach(t.Context(), att); err != nil {
			t.Error(err)
		}
	}
	n.Close()
	l.write("calls", "", 0o644)
	l.write("conf/10-fake.conflist", strings.Replace(newest(), `"name"`, `"disableGC":true,"name"`, 1), 0o644)
	n = l.open(l.config())
	defer n.Close()
	if err := n.GC(t.Context(), nil); err != nil || l.verbs() != "" {
		t.Errorf("with disableGC the plugin saw %q, %v", l.verbs(), err)
	}
}

// TestGCDetachesFromTheCache: without a record, the cache of results is enough for DEL, with the
// configuration of ADD, in every version.
func TestGCDetachesFromTheCache(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `[ $CNI_COMMAND != ADD ] || `+okResult)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	n := l.open(l.config())
	att := l.pod()
	if _, err := n.Attach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	n.Close()
	if err := errors.Join(os.RemoveAll(l.path("root", "attachments")), os.Remove(l.path("conf", "10-fake.conflist"))); err != nil {
		t.Fatal(err)
	}
	config, seen := l.config(), &tally{}
	config.Observer = seen
	n = l.open(config)
	defer n.Close()
	if err := n.GC(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := seen.text(); got != "found attachment, fake DEL ok, repaired attachment" {
		t.Errorf("the observer saw %q", got)
	}
	if got := l.verbs(); got != "ADD DEL" {
		t.Errorf("the plugin saw %q, want a DEL of what the cache has", got)
	}
	if left, _ := filepath.Glob(l.path("root", "cache", "results", "*")); len(left) > 0 {
		t.Errorf("the cache has %q", left)
	}
}

// TestALeakIsCountedOnce: however often its release fails, and also when it ends without berth.
func TestALeakIsCountedOnce(t *testing.T) {
	for name, end := range map[string]struct {
		do   func(l *lab) error
		want string
	}{
		"released": {
			func(l *lab) error { return os.Remove(l.path("stuck")) },
			"found attachment, fake DEL failed, fake DEL failed, fake DEL ok, repaired attachment",
		},
		"gone": {
			func(l *lab) error { return os.RemoveAll(l.path("root", "cache", "results")) },
			"found attachment, fake DEL failed, fake DEL failed, repaired attachment",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.plugin("fake", `if [ $CNI_COMMAND = DEL ]; then [ ! -e `+l.path("stuck")+` ]; exit; fi; [ $CNI_COMMAND != ADD ] || `+okResult)
			l.write("conf/10-fake.conflist", fakeConf, 0o644)
			n := l.open(l.config())
			if _, err := n.Attach(t.Context(), l.pod()); err != nil {
				t.Fatal(err)
			}
			n.Close()
			if err := errors.Join(os.RemoveAll(l.path("root", "attachments")), os.Remove(l.path("conf", "10-fake.conflist"))); err != nil {
				t.Fatal(err)
			}
			l.write("stuck", "", 0o644)
			config, seen := l.config(), &tally{}
			config.Observer = seen
			n = l.open(config)
			defer n.Close()
			for i := range 4 {
				if i == 2 {
					if err := end.do(l); err != nil {
						t.Fatal(err)
					}
				}
				if err := n.GC(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			if got := seen.text(); got != end.want {
				t.Errorf("the observer saw %q, want %q", got, end.want)
			}
		})
	}
}

// TestGCKeepsAPodWithoutARecord: the record of an attachment is damaged or gone, and the pod runs. What it
// holds stays until it is detached.
func TestGCKeepsAPodWithoutARecord(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `[ $CNI_COMMAND != ADD ] || `+okResult)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	n := l.open(l.config())
	att := l.pod()
	if _, err := n.Attach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	n.Close()
	if err := os.RemoveAll(l.path("root", "attachments")); err != nil {
		t.Fatal(err)
	}
	n = l.open(l.config())
	defer n.Close()
	if err := n.GC(t.Context(), []string{att.SandboxID}); err != nil {
		t.Fatal(err)
	}
	if got := l.verbs(); got != "ADD" {
		t.Errorf("while the pod runs the plugin saw %q", got)
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	if err := n.GC(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := l.verbs(); got != "ADD DEL" {
		t.Errorf("after the pod the plugin saw %q", got)
	}
}

// TestNothingBesideGC: an ADD and a DEL wait for the GC of a plugin, which nobody kills; see gcGate.
func TestNothingBesideGC(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `case $CNI_COMMAND in ADD) `+answer("1.1.0")+`;; esac
[ $CNI_COMMAND != GC ] || { until [ -e `+l.path("end")+` ]; do sleep 0.02; done; echo "GC-END " >>`+l.path("calls")+`; }`)
	l.write("conf/10-fake.conflist", newest(), 0o644)
	n := l.open(l.config())
	defer n.Close()
	old, young := l.pod(), l.pod()
	if _, err := n.Attach(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 3)
	go func() { done <- n.GC(t.Context(), []string{old.SandboxID}) }()
	await(t, "GC", func() bool { return l.verbs() == "ADD GC" })
	go func() { done <- n.Detach(t.Context(), old) }()
	go func() {
		_, err := n.Attach(t.Context(), young)
		done <- err
	}()
	time.Sleep(200 * time.Millisecond)
	if got := l.verbs(); got != "ADD GC" {
		t.Errorf("while GC runs the plugin saw %q", got)
	}
	l.write("end", "", 0o644)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := l.verbs(); got != "ADD GC GC-END ADD DEL" && got != "ADD GC GC-END DEL ADD" {
		t.Errorf("the plugin saw %q", got)
	}
	if err := n.Detach(t.Context(), young); err != nil {
		t.Error(err)
	}
}

// TestStoreOfHostLocal: GC at the start releases the addresses of sandboxes whose record is damaged, or was taken by a
// loss of power. The address of a container that berth never had stays, and is reported.
func TestStoreOfHostLocal(t *testing.T) {
	l := newLab(t)
	for _, plugin := range []string{"bridge", "host-local"} {
		require.Binary(t, "/usr/lib/cni/"+plugin)
	}
	l.write("conf/10-net.conflist", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","plugins":[
 {"type":"bridge","bridge":"cni0","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.56.0.0/24"}]]}}]}`, l.path("ipam")), 0o644)
	n := l.open(l.config())
	lost, kept, empty := l.pod(), l.pod(), l.pod()
	for _, att := range []*network.Attachment{lost, kept, empty} {
		if _, err := n.Attach(t.Context(), att); err != nil {
			t.Fatal(err)
		}
	}
	n.Close()
	l.write("ipam/net/10.56.0.8", "", 0o600) // after a loss of power
	l.write("ipam/net/10.56.0.9", "foreign-container\r\neth0", 0o600)
	l.write("root/attachments/"+lost.SandboxID+".json", "{", 0o600)
	l.write("root/attachments/"+empty.SandboxID+".json", "", 0o600)
	before := time.Unix(0, 0)
	if err := errors.Join(os.Chtimes(l.path("root/attachments", empty.SandboxID+".json"), before, before), os.RemoveAll(l.path("root", "cache"))); err != nil {
		t.Fatal(err)
	}
	l.open(l.config()).Close() // an earlier start that ended before it collected
	n = l.open(l.config())
	defer n.Close()
	if err := n.GC(t.Context(), []string{kept.SandboxID}); err != nil {
		t.Fatal(err)
	}
	given, err := filepath.Glob(l.path("ipam", "net", "10.*"))
	for i, path := range given {
		given[i] = filepath.Base(path)
	}
	if err != nil || !slices.Equal(given, []string{"10.56.0.3", "10.56.0.9"}) {
		t.Errorf("given out: %q, %v; want that of the known sandbox and that of the other container, and not the empty one", given, err)
	}
	for dir, want := range map[string]int{"quarantine": 1, "lost": 0} {
		if found, err := os.ReadDir(l.path("root", dir)); err != nil || len(found) != want {
			t.Errorf("%s has %v, %v", dir, found, err)
		}
	}
	if text := n.Info()["foreignAddresses"]; !strings.Contains(text, "10.56.0.9") || strings.Contains(text, "10.56.0.3") {
		t.Errorf("reported: %q", text)
	}
	if err := n.Detach(t.Context(), kept); err != nil {
		t.Error(err)
	}
}

// TestVersions: a network is described with its plugins, also those of IPAM, their versions and
// what is missing.
func TestVersions(t *testing.T) {
	l := newLab(t)
	require.Binary(t, "/usr/lib/cni/host-local")
	l.plugin("fake", `echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'`)
	l.write("conf/10-net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"fake","ipam":{"type":"host-local"}},{"type":"absent"}]}`, 0o644)
	l.write("conf/05-bad.conflist", `{`, 0o644)
	n := l.open(l.config())
	defer n.Close()
	all, fault := n.Networks(t.Context())
	if len(all) != 1 || len(all[0].Plugins) != 3 || fault == nil || !strings.Contains(fault.Error(), "05-bad.conflist:1:1") {
		t.Fatalf("%+v, %v", all, fault)
	}
	fake, ipam, absent := all[0].Plugins[0], all[0].Plugins[1], all[0].Plugins[2]
	if !slices.Equal(fake.Versions, []string{"0.4.0", "1.0.0"}) || fake.Path != l.path("bin", "fake") || fake.Fault != nil {
		t.Errorf("%+v", fake)
	}
	if !slices.Contains(ipam.Versions, "1.0.0") || ipam.Path != "/usr/lib/cni/host-local" {
		t.Errorf("%+v", ipam)
	}
	if absent.Fault == nil || absent.Path != "" {
		t.Errorf("%+v", absent)
	}
}

// tally is an observer that notes what it sees, but for versions.
type tally struct {
	mu   sync.Mutex
	seen []string
}

func (t *tally) add(words ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = append(t.seen, strings.Join(words, " "))
}

func (t *tally) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.seen, ", ")
}

func (t *tally) LeakFound(kind string)    { t.add("found", kind) }
func (t *tally) LeakRepaired(kind string) { t.add("repaired", kind) }

func (t *tally) PluginCalled(plugin, verb string, _ time.Duration, err error) {
	switch {
	case verb == "VERSION":
	case err != nil:
		t.add(plugin, verb, "failed")
	default:
		t.add(plugin, verb, "ok")
	}
}

// TestCallsAreCounted: each call of a plugin counts with its verb, those that fail as failures.
func TestCallsAreCounted(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", `[ $CNI_COMMAND != ADD ] || exit 1`)
	l.write("conf/10-fake.conflist", fakeConf, 0o644)
	config, seen := l.config(), &tally{}
	config.Observer = seen
	n := l.open(config)
	defer n.Close()
	att := l.pod()
	if _, err := n.Attach(t.Context(), att); err == nil {
		t.Fatal("the pod is attached")
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	if got := seen.text(); got != "fake ADD failed, fake DEL ok" {
		t.Errorf("the observer saw %q", got)
	}
}
