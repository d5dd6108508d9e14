//go:build integration

package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/test/harness"
)

func TestExecRules(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for name, test := range map[string]func(*testing.T, *harness.Berth){
		"runs as the container":                      execRunsAsTheContainer,
		"says what cannot be executed":               execSaysWhatCannotBeExecuted,
		"time-out kills the whole tree":              execTimeoutKillsTheTree,
		"client that leaves kills the whole tree":    execCancelKillsTheTree,
		"background child does not delay answer":     execBackgroundChild,
		"output is capped and the cut is reported":   execOutputIsCapped,
		"paused container answers":                   execInPausedContainer,
		"container that ends meanwhile answers":      execWhileContainerEnds,
		"leaves no cgroup behind":                    execLeavesNoCgroup,
		"stays in a cgroup of its own while it runs": execHasItsCgroup,
	} {
		t.Run(name, func(t *testing.T) {
			mine := *b
			mine.T = t
			test(t, &mine)
		})
	}
}

func execSync(b *harness.Berth, container string, timeout int64, cmd ...string) (*runtimeapi.ExecSyncResponse, error) {
	return b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: cmd, Timeout: timeout})
}

// facts prints the attributes of a process.
const facts = `id; pwd; env | grep -v ^SHLVL= | sort; grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups)' /proc/self/status; ulimit -n; hostname`

func execRunsAsTheContainer(t *testing.T, b *harness.Berth) {
	sandbox := b.Sandbox("as")
	pod := b.RunSandbox(sandbox)
	config := b.Container("c", facts+"; exec sleep 100000")
	config.WorkingDir = "/tmp"
	config.Envs = []*runtimeapi.KeyValue{{Key: "COLOR", Value: []byte("blue sky")}}
	config.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
	config.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 1001}
	config.Linux.SecurityContext.SupplementalGroups = []int64{2000}
	config.Linux.SecurityContext.NoNewPrivs = true
	container := b.Create(pod, config, sandbox)
	b.StartContainer(container)
	log := filepath.Join(sandbox.LogDirectory, "c", "0.log")
	var own []string
	b.Await("the container's facts", func() bool {
		own, _ = harness.LogLines(log) // not there yet
		return len(own) > 0 && own[len(own)-1] == "as"
	})
	got, marks := withoutMark(b.ExecOut(container, facts))
	if want := strings.Join(own, "\n"); got != want {
		t.Errorf("in an exec:\n%s\nin the container:\n%s", got, want)
	}
	if mine := b.Docker != nil; (marks == 1) != mine || marks > 1 {
		t.Errorf("%d variables by which berth finds a command's processes; the engine has cgroups for commands: %v", marks, !mine)
	}
	b.RemovePod(pod)
}

// withoutMark leaves out the variable by which berth finds what a command has started, where an engine
// has no cgroup for it, and counts it.
func withoutMark(lines string) (rest string, marks int) {
	var kept []string
	for line := range strings.SplitSeq(lines, "\n") {
		if strings.HasPrefix(line, "BERTH_EXEC=") {
			marks++
		} else {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n"), marks
}

func execSaysWhatCannotBeExecuted(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("missing", "sleep 100000")
	b.Exec(pod.Container, "echo data > /tmp/data; printf '#!/no/such/interpreter\n' > /tmp/script; chmod +x /tmp/script")
	wants := map[string]string{
		"no-such":      `exec: "no-such": executable file not found in $PATH`,
		"/no/such":     `exec: "/no/such": stat /no/such: no such file or directory`,
		"/etc":         `exec: "/etc": is a directory`,
		"/tmp/data":    `exec: "/tmp/data": permission denied`,
		"/tmp/script":  `exec: "/tmp/script": no such file or directory`,
		"./etc/passwd": `permission denied`,
	}
	if b.Docker != nil {
		wants["/etc"] = `exec: "/etc": ` // and a reason, which depends on the version of runc
	}
	if !b.Has(harness.ExecFaults) {
		delete(wants, "/tmp/script")
		answer, err := execSync(b, pod.Container, 20, "/tmp/script")
		if err == nil && (answer.ExitCode == 0 || !strings.Contains(string(answer.Stderr), "/tmp/script")) {
			t.Errorf("a script without its interpreter: %v", answer)
		}
	}
	for cmd, want := range wants {
		_, err := execSync(b, pod.Container, 20, cmd)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", cmd, err, want)
		}
	}
	// A shell reports by its code that it cannot execute a file, as everywhere.
	for script, want := range map[string]int32{"no-such": 127, "/tmp/data": 126, "exit 255": 255, "kill -9 $$": 137} {
		if got := b.Exec(pod.Container, script).ExitCode; got != want {
			t.Errorf("%q in a shell: code %d, want %d", script, got, want)
		}
	}
	b.RemovePod(pod.Sandbox)
}

// tree starts a child, a process that left the session and the process group, and an orphan.
const tree = `sleep 34561 & setsid sleep 34562 & (setsid sh -c 'sleep 34563 & exec sleep 34564' &) ; echo begun; sleep 34565`

func awaitNoTree(b *harness.Berth, container string) {
	b.T.Helper()
	b.Await("everything that the exec started to end", func() bool {
		return !strings.Contains(b.ExecOut(container, "ps"), "sleep 3456")
	})
}

func execTimeoutKillsTheTree(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("tree", "sleep 100000")
	began := time.Now()
	_, err := execSync(b, pod.Container, 1, "/bin/sh", "-c", tree)
	if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "timeout 1s exceeded") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("it took %v", took)
	}
	awaitNoTree(b, pod.Container)
	b.RemovePod(pod.Sandbox)
}

func execCancelKillsTheTree(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("cancel", "sleep 100000")
	ctx, cancel := context.WithCancel(b.Ctx())
	done := make(chan error, 1)
	go func() {
		_, err := b.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: pod.Container, Cmd: []string{"/bin/sh", "-c", tree}})
		done <- err
	}()
	b.Await("the tree", func() bool { return strings.Contains(b.ExecOut(pod.Container, "ps"), "sleep 34563") })
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	awaitNoTree(b, pod.Container)
	b.RemovePod(pod.Sandbox)
}

func execBackgroundChild(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("background", "sleep 100000")
	began := time.Now()
	answer := b.Exec(pod.Container, "echo before; (sleep 34571; echo late) & exit 9")
	if string(answer.Stdout) != "before\n" || answer.ExitCode != 9 || time.Since(began) > 20*time.Second {
		t.Errorf("after %v: %q, code %d", time.Since(began), answer.Stdout, answer.ExitCode)
	}
	if !strings.Contains(b.ExecOut(pod.Container, "ps"), "sleep 34571") {
		t.Error("the child was killed, though its parent ended by itself")
	}
	// A process that never stops writing cannot delay the exec either.
	if answer := b.Exec(pod.Container, "yes & exit 8"); answer.ExitCode != 8 {
		t.Errorf("code %d beside a child that writes", answer.ExitCode)
	}
	b.RemovePod(pod.Sandbox)
}

func execOutputIsCapped(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("cap", "sleep 100000")
	answer, err := execSync(b, pod.Container, 100, "/bin/sh", "-c", "head -c 20000000 /dev/zero; head -c 1000 /dev/zero >&2; exit 3")
	if err != nil || answer.ExitCode != 3 || len(answer.Stderr) != 1000 {
		t.Fatalf("code %d, %d bytes of stderr, %v", answer.GetExitCode(), len(answer.GetStderr()), err)
	}
	const limit = 16 << 20 // of a message that a kubelet accepts
	if n := len(answer.Stdout); n > limit || n < limit-4096 {
		t.Errorf("%d bytes of stdout", n)
	}
	b.Await("a word about it in the log", func() bool { return strings.Contains(b.LogTail(), "is longer than an answer can be") })
	b.RemovePod(pod.Sandbox)
}

// freezer returns the file that pauses a container, and what to write to it.
func freezer(t *testing.T, container string) (file, freeze, thaw string) {
	t.Helper()
	root, name := "/sys/fs/cgroup/freezer", "freezer.state"
	freeze, thaw = "FROZEN", "THAWED"
	if _, err := os.Stat(root); err != nil {
		root, name, freeze, thaw = "/sys/fs/cgroup", "cgroup.freeze", "1", "0"
	}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(entry.Name(), container) {
			file = filepath.Join(path, name)
			return fs.SkipAll
		}
		return nil // other tests create and remove cgroups
	})
	if err != nil || file == "" {
		t.Fatalf("the container's cgroup is not found: %v", err)
	}
	return file, freeze, thaw
}

func execInPausedContainer(t *testing.T, b *harness.Berth) {
	b.NeedsPart(t, harness.FrozenByRuntime)
	pod := b.RunPod("paused", "sleep 100000")
	file, freeze, thaw := freezer(t, pod.Container)
	if err := os.WriteFile(file, []byte(freeze), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := execSync(b, pod.Container, 20, "true"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "paused") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(file, []byte(thaw), 0); err != nil {
		t.Fatal(err)
	}
	if got := b.ExecOut(pod.Container, "echo here"); got != "here" {
		t.Errorf("after it was resumed: %q", got)
	}
	b.RemovePod(pod.Sandbox)
}

// A container may end at any moment of an exec. The answer is an exit code, or an error that the
// container does not run, and never an internal error.
func execWhileContainerEnds(t *testing.T, b *harness.Berth) {
	sandbox := b.Sandbox("ends")
	pod := b.RunSandbox(sandbox)
	codesSeen := map[codes.Code]int{}
	for i := range 12 {
		container := b.Create(pod, b.Container(fmt.Sprint("c", i), fmt.Sprintf("exec sleep 0.%02d", 5+i*5)), sandbox)
		b.StartContainer(container)
		for {
			answer, err := execSync(b, container, 20, "/bin/sh", "-c", "exit 5")
			code := status.Code(err)
			codesSeen[code]++
			if code == codes.OK && answer.ExitCode != 5 && answer.ExitCode != 137 {
				t.Errorf("code %d", answer.ExitCode)
			}
			if code == codes.FailedPrecondition {
				break
			}
			if code != codes.OK {
				t.Errorf("in a container that ends: %v", err)
				break
			}
		}
	}
	t.Logf("%v", codesSeen)
	// Otherwise leftovers of a failed start would stay, and hold the container's init.
	supervisor := fmt.Sprint(b.SupervisorPid())
	b.Await("zombies to be reaped", func() bool {
		out, err := exec.Command("ps", "-o", "stat=,args=", "--ppid", supervisor).Output()
		return err != nil || !strings.Contains("\n"+string(out), "\nZ")
	})
	b.RemovePod(pod)
}

// execGroups lists the cgroups of a container's execs.
func execGroups(t *testing.T, container string) []string {
	t.Helper()
	file, _, _ := freezer(t, container)
	found, err := filepath.Glob(filepath.Join(filepath.Dir(file), "berth-exec-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func execHasItsCgroup(t *testing.T, b *harness.Berth) {
	b.NeedsPart(t, harness.LoneCommands)
	pod := b.RunPod("own", "mkfifo /tmp/go; exec sleep 100000")
	done := make(chan error, 1)
	go func() {
		_, err := execSync(b, pod.Container, 60, "/bin/sh", "-c", "until test -p /tmp/go; do sleep 0.05; done; touch /tmp/here; sleep 34581 & read word < /tmp/go")
		done <- err
	}()
	b.Await("the exec", func() bool { return b.Exec(pod.Container, "test -e /tmp/here").ExitCode == 0 })
	held := 0
	for _, dir := range execGroups(t, pod.Container) {
		// The cgroups of the execs before may go meanwhile.
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			t.Error(err)
		}
		held = max(held, len(strings.Fields(string(procs))))
	}
	if held < 1 {
		t.Errorf("no cgroup of the exec's own holds its processes: %v", execGroups(t, pod.Container))
	}
	b.Exec(pod.Container, "echo go > /tmp/go")
	<-done
	b.RemovePod(pod.Sandbox)
}

func execLeavesNoCgroup(t *testing.T, b *harness.Berth) {
	b.NeedsPart(t, harness.LoneCommands)
	pod := b.RunPod("groups", "sleep 100000")
	for range 5 {
		b.Exec(pod.Container, "true")
	}
	b.Await("the cgroups of execs to go", func() bool { return len(execGroups(t, pod.Container)) == 0 })
	b.RemovePod(pod.Sandbox)
}
