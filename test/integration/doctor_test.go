//go:build integration

package integration

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/test/harness"
)

// leaksOf runs `berth doctor` for an instance, and returns what it says of leaks that is not ok.
func leaksOf(b *harness.Berth, args ...string) []finding.Finding {
	b.T.Helper()
	argv := append([]string{"doctor", "-o", "json", "--network", "builtin", "--listen", "unix://" + b.Socket, "--root", b.Root, "--state", b.State}, args...)
	cmd := b.InHost(filepath.Join(b.Bin, "berth"), argv...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.T.Fatal(err)
	}
	var all, leaks []finding.Finding
	if err := json.Unmarshal(out, &all); err != nil {
		b.T.Fatalf("%v: %s\n%s", err, out, stderr.String())
	}
	for _, f := range all {
		if strings.HasPrefix(f.ID, "leak-") && f.Level != finding.OK {
			leaks = append(leaks, f)
		}
	}
	return leaks
}

// TestDoctorRepairsLeaks: doctor finds what has no record, while berth runs, and removes that and nothing
// else.
func TestDoctorRepairsLeaks(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("stays", "sleep 1000")
	if found := leaksOf(b); len(found) > 0 {
		t.Errorf("without a leak: %+v", found)
	}
	before := b.StillGround()

	lost := strings.Repeat("c3", 32)
	instance := harness.InstanceOf(b.State)
	want := map[string]string{
		"leak-netns":     "/run/netns/berth-" + instance + "-" + lost,
		"leak-mounts":    filepath.Join(b.State, "images/rootfs", lost),
		"leak-processes": "/berth-" + instance + "/" + lost,
		"leak-links":     "vethc3c3c3c3c3",
	}
	if err := sysns.NewNetNS(want["leak-netns"]); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(want["leak-mounts"], 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("berth-leak", want["leak-mounts"], "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	sleeper := inCgroup(t, want["leak-processes"])
	for _, args := range [][]string{
		{"ip", "link", "add", want["leak-links"], "type", "veth", "peer", "name", "leakpeer"},
		{"ip", "link", "set", want["leak-links"], "alias", "berth sandbox " + lost + " 10.255.255.1/32"},
		{"ip", "link", "set", want["leak-links"], "master", bridgeOf(b)},
	} {
		if out, err := b.InHost(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}

	expect := func(found []finding.Finding, repaired bool) {
		t.Helper()
		left := map[string]bool{}
		for _, f := range found {
			left[f.ID] = true
			if want[f.ID] != f.Object || f.Repaired != repaired || f.Evidence == "" || f.Repair == "" || f.Unrepaired != "" {
				t.Errorf("want %s, repaired: %v, got %+v", want[f.ID], repaired, f)
			}
		}
		if len(left) != len(want) || len(found) != len(want) {
			t.Errorf("want a finding for each of %v, got %+v", want, found)
		}
	}
	expect(leaksOf(b), false)
	expect(leaksOf(b, "--repair"), true)
	<-sleeper
	if found := leaksOf(b, "--repair"); len(found) > 0 {
		t.Errorf("after the repair: %+v", found)
	}
	if differences := b.AwaitGround(before, 20*time.Second); differences != "" {
		t.Errorf("the repair has changed something else, or left something:\n%s", differences)
	}
	if out := b.ExecOut(pod.Container, "echo alive"); strings.TrimSpace(out) != "alive" {
		t.Errorf("the pod beside the leaks says %q", out)
	}
}

// TestDoctorReadsLiveRecords: while berth runs, doctor finds a record that cannot be read, and a sandbox whose network
// namespace is gone. What it advises mends both. It takes berth's directories from the endpoint.
func TestDoctorReadsLiveRecords(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.RunPod("whole", "sleep 1000")
	lost, cut := b.RunPod("lost", "sleep 1000"), b.RunPod("cut", "sleep 1000")
	found := func() map[string]finding.Finding {
		t.Helper()
		out, errOut, _ := b.CLI("doctor", "--check", "records", "-o", "json") // the exit code is 1 if there is a problem
		var all []finding.Finding
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatalf("%v: %s%s", err, out, errOut)
		}
		objects := map[string]finding.Finding{}
		for _, f := range all {
			if f.Level != finding.OK {
				objects[f.Object] = f
			}
		}
		return objects
	}
	if all := found(); len(all) > 0 {
		t.Errorf("without a fault: %+v", all)
	}
	pin := "/run/netns/berth-" + harness.InstanceOf(b.State) + "-" + lost.Sandbox
	if err := sysns.RemoveNetNS(pin); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(b.State, "pods/containers", cut.Container+".json")
	if err := os.Truncate(record, 100); err != nil {
		t.Fatal(err)
	}
	all := found()
	if f := all[pin]; f.Level != finding.Problem || !strings.Contains(f.Evidence, "its network namespace "+pin+" is gone") || !strings.Contains(f.Fix, "berth pod stop "+lost.Sandbox) {
		t.Errorf("the network namespace: %+v", f)
	}
	if f := all[record]; f.Level != finding.Problem || !strings.Contains(f.Evidence, "cannot be read") || !strings.Contains(f.Fix, "berth container rm --force "+cut.Container) {
		t.Errorf("the record: %+v", f)
	}
	if len(all) != 2 {
		t.Errorf("want two findings, got %+v", all)
	}
	b.MustCLI("pod", "stop", lost.Sandbox)
	b.MustCLI("container", "rm", "--force", cut.Container)
	if all := found(); len(all) > 0 {
		t.Errorf("after what doctor advises: %+v", all)
	}
}

// inCgroup starts a process in a new cgroup, and returns a channel that is closed when it has ended.
func inCgroup(t *testing.T, path string) <-chan struct{} {
	t.Helper()
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Make(path); err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = sleep.Wait() // it is killed
		close(ended)
	}()
	t.Cleanup(func() {
		_ = sleep.Process.Kill() // it has ended, if the test has not failed
		<-ended
	})
	if err := tree.Admit(path, sleep.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return ended
}

// bridgeOf is the bridge of an instance.
func bridgeOf(b *harness.Berth) string {
	out, err := b.InHost("ip", "-o", "link", "show", "type", "bridge").Output()
	if err != nil {
		b.T.Fatal(err)
	}
	words := strings.Fields(string(out))
	if len(words) < 2 {
		b.T.Fatalf("no bridge: %s", out)
	}
	return strings.TrimSuffix(words[1], ":")
}

// TestDoctorWhileBerthIsDown: doctor repairs mounts and pins also then, and leaves processes to the next
// start of berth.
func TestDoctorWhileBerthIsDown(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("stays", "sleep 1000")
	lost := strings.Repeat("c3", 32)
	pin := "/run/netns/berth-" + harness.InstanceOf(b.State) + "-" + lost
	if err := sysns.NewNetNS(pin); err != nil {
		t.Fatal(err)
	}
	b.KillDaemon()
	found := leaksOf(b, "--repair")
	if len(found) != 1 || found[0].ID != "leak-netns" || found[0].Object != pin || !found[0].Repaired {
		t.Errorf("want %s repaired, got %+v", pin, found)
	}
	b.StartDaemon()
	if out := b.ExecOut(pod.Container, "echo alive"); strings.TrimSpace(out) != "alive" {
		t.Errorf("the pod says %q", out)
	}
}

// TestDoctorWhilePodsComeAndGo: a pod that starts or ends is no leak.
func TestDoctorWhilePodsComeAndGo(t *testing.T) {
	doctorBesidePods(t, 3, 4)
}

// doctorBesidePods runs doctor some times, while some loops make and remove pods.
func doctorBesidePods(t *testing.T, loops, times int) {
	b := harness.Start(t, harness.Options{})
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range loops {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				pod := b.RunPod("pod"+string(rune('a'+i)), "sleep 1000")
				b.RemovePod(pod.Sandbox)
			}
		})
	}
	for range times {
		if found := leaksOf(b, "--repair"); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	}
	close(stop)
	running.Wait()
}
