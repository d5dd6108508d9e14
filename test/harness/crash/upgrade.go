package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/supervisor/keep"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Upgrade replaces berth's binaries under load, to the next version and back, with binaries in
// between that fail their self-test. berth refuses those, and nothing is lost. If BERTH_BEFORE
// names a directory with other binaries, the upgrade is to those and back. It begins with the
// ones under test, since the test imports its image by berth's own service, which is theirs.
func Upgrade(t *testing.T, opts Options) {
	t.Helper()
	if opts.Seed == 0 {
		opts.Seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", opts.Seed)
	this, next, version := upgrades(t)
	installed := t.TempDir()
	install(t, this, installed)
	b := harness.Start(t, harness.Options{BinDir: installed})
	b.NeedsPart(t, harness.Supervisors)
	c := newTest(t, b, opts)
	ground := c.groundState()
	c.begin()
	u := &upgrade{test: c, installed: installed}
	for range opts.Rounds[Supervisor] {
		u.to(next, version)
		u.refuse("a script that fails", []byte("#!/bin/sh\necho this one is broken\nexit 3\n"))
		u.refuse("half a program", half(t, filepath.Join(this, supervisorName)))
		u.refuse("no program", []byte("nothing that can be executed"))
		u.to(this, "")
	}
	c.finish(ground)
}

// upgrades returns the directories of the first binaries and of those to upgrade to, and the
// version that the latter report, "" if it is not known.
func upgrades(t *testing.T) (from, to, version string) {
	t.Helper()
	if before := os.Getenv("BERTH_BEFORE"); before != "" {
		return harness.BinDir(t), before, ""
	}
	return harness.BinDir(t), buildNext(t), nextVersion
}

const (
	daemonName, supervisorName = "berth", "berth-supervisor"
	nextVersion                = "99.0.0-next"
)

// upgrade is an installation whose files are replaced while it runs.
type upgrade struct {
	*test
	installed string
}

// to installs both binaries of a directory and waits until both processes run them.
func (u *upgrade) to(dir, version string) {
	if u.failed() {
		return
	}
	u.sleep(time.Second)
	u.note("upgrade to %s", dir)
	install(u.t, dir, u.installed)
	before := u.processes()
	u.hangUp()
	u.await("the supervisor to be replaced", func() bool {
		now := u.processes()
		return now.supervisor > 0 && now.supervisor != before.supervisor && u.runs(now.supervisor)
	})
	if now := u.processes(); now.keeper != before.keeper {
		u.errorf("the keeper was process %d and is %d: an upgrade leaves it alone", before.keeper, now.keeper)
	}
	u.checkAlive(0)
	done := u.beginOutage(Daemon)
	u.b.StopDaemon()
	u.b.LaunchDaemon()
	u.recovered(0)
	done()
	if got := u.version(); version != "" && got != version {
		u.errorf("the daemon is version %q, want %q", got, version)
	}
	u.checkAlive(0)
	if !u.failed() {
		u.t.Logf("upgraded to %s", dir) // build/upgrade-matrix.sh counts these lines
	}
}

// refuse installs a broken supervisor: the running one must stay.
func (u *upgrade) refuse(what string, content []byte) {
	if u.failed() {
		return
	}
	u.note("upgrade to %s", what)
	file := filepath.Join(u.installed, supervisorName)
	good, err := os.ReadFile(file)
	if err != nil {
		u.t.Fatal(err)
	}
	replace(u.t, file, content)
	before, began := u.processes(), time.Now()
	u.hangUp()
	u.await("the upgrade to be refused", func() bool {
		status := u.keeperStatus()
		return status.UpgradeAt != nil && status.UpgradeAt.After(began) && status.UpgradeError != ""
	})
	u.note("refused: %s", u.keeperStatus().UpgradeError)
	if now := u.processes(); now != before {
		u.errorf("after %s was refused the processes are %+v, before %+v", what, now, before)
	}
	u.checkAlive(0)
	replace(u.t, file, good)
}

// hangUp requests an upgrade from the keeper.
func (u *upgrade) hangUp() {
	if err := syscall.Kill(u.processes().keeper, syscall.SIGHUP); err != nil {
		u.errorf("hang up: %v", err)
	}
}

func (u *upgrade) await(what string, done func() bool) {
	for deadline := time.Now().Add(awayTimeout()); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			u.errorf("timed out waiting for %s", what)
			return
		}
	}
}

// runs reports whether the process executes the installed supervisor.
func (u *upgrade) runs(pid int) bool {
	on, err := os.Stat(filepath.Join(u.installed, supervisorName))
	if err != nil {
		return false
	}
	running, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && os.SameFile(on, running)
}

func (u *upgrade) version() string {
	var answer *runtimeapi.VersionResponse
	if err := u.retryWhileAway(func(ctx context.Context) (err error) {
		answer, err = u.runtime.Version(ctx, &runtimeapi.VersionRequest{})
		return err
	}); err != nil {
		u.errorf("version: %v", err)
	}
	return answer.GetRuntimeVersion()
}

func (u *upgrade) keeperStatus() keep.Status {
	var status keep.Status
	data, err := os.ReadFile(filepath.Join(u.b.State, "supervisor", keep.StatusName))
	if err == nil {
		err = json.Unmarshal(data, &status)
	}
	if err != nil {
		u.errorf("the keeper's status: %v", err)
	}
	return status
}

// buildNext builds both binaries with another version.
func buildNext(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	stamp := "-X github.com/berthrun/berth/internal/version.Version=" + nextVersion
	for _, build := range []struct{ name, cgo, tags, ldflags string }{
		{daemonName, "CGO_ENABLED=0", "netgo osusergo", stamp},
		{supervisorName, "CGO_ENABLED=1", "seccomp netgo osusergo runc_nocriu", stamp + ` -linkmode external -extldflags "-static"`},
	} {
		cmd := exec.Command("go", "build", "-trimpath", "-tags", build.tags, "-ldflags", build.ldflags,
			"-o", filepath.Join(dir, build.name), "github.com/berthrun/berth/cmd/"+build.name)
		cmd.Env = append(os.Environ(), build.cgo)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", build.name, err, out)
		}
	}
	return dir
}

// install installs both binaries of a directory, each atomically.
func install(t testing.TB, from, to string) {
	t.Helper()
	for _, name := range []string{daemonName, supervisorName} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		replace(t, filepath.Join(to, name), content)
	}
}

func replace(t testing.TB, file string, content []byte) {
	t.Helper()
	// Another process writes the file. If the test wrote it, a child that it forks at this moment
	// would hold the file open for writing, and the file could not be executed.
	cmd := exec.Command("install", "-m", "0755", "/dev/stdin", file+".new")
	cmd.Stdin = bytes.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("install %s: %v: %s", file, err, strings.TrimSpace(string(out)))
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func half(t testing.TB, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content[:len(content)/2]
}
