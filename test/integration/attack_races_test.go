//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/attack"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// raceRounds is how many containers of a kind are created while their paths change.
const raceRounds = 100

// swapped is a name in a volume that alternates between two things.
type swapped struct {
	name string
	// link is the link's target in one state; make creates the other state.
	link string
	make func(path string) error
}

func makeDir(path string) error  { return os.Mkdir(path, 0o777) }
func makeFile(path string) error { return os.WriteFile(path, []byte("of the volume\n"), 0o666) }
func makeNull(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) }

// TestPathsThatChangeWhileAContainerIsMade: a container that shares a volume exchanges mount
// points, devices and the terminal with links while other containers are created. Each of them is
// refused or sees the right files, and nothing on the host changes.
func TestPathsThatChangeWhileAContainerIsMade(t *testing.T) {
	x := newTrial(t, harness.Options{})
	outside, _ := outsideOf(t, x.Berth)
	const setting = "/proc/sys/kernel/domainname"
	data := filepath.Join(x.Dir, "attacker-data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	file := x.file("attacker-data/file", "data")
	for _, c := range []struct {
		name, at string
		names    []swapped
		mounts   []*runtimeapi.Mount
		script   string
		tty      bool
	}{
		{
			name: "mount points", at: "/v", script: soundDevices + soundSystem,
			names: []swapped{
				{"a", outside, makeDir}, {"f", filepath.Join(outside, "null"), makeFile}, {"p", "/proc", makeDir}, {"q", "/proc/sys/kernel", makeDir},
			},
			mounts: []*runtimeapi.Mount{
				{HostPath: data, ContainerPath: "/v/a/b/c"},
				{HostPath: file, ContainerPath: "/v/a/d/file"},
				{HostPath: file, ContainerPath: "/v/f"},
				{HostPath: data, ContainerPath: "/v/p/sys"},
				{HostPath: data, ContainerPath: "/v/q"},
			},
		},
		{
			name: "devices", at: "/dev", script: soundSystem,
			names: []swapped{{"null", setting, makeNull}, {"shm", "/proc/sys", makeDir}, {"mqueue", outside, makeDir}},
		},
		{
			// The volume hides the container's own terminals, so no container starts.
			name: "terminal", at: "/dev", script: soundSystem, tty: true,
			names: []swapped{
				{"null", setting, makeNull},
				{"console", setting, makeFile},
				{"pts", outside, makeDir},
				{"ptmx", setting, makeFile},
				{"file", outside + "/absent", makeFile},
			},
			mounts: []*runtimeapi.Mount{{HostPath: file, ContainerPath: "/dev/file"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			victim := func(volume string) *runtimeapi.ContainerConfig {
				config := x.Container("victim", c.script)
				hidePaths(config)
				config.Tty = c.tty
				config.Mounts = append([]*runtimeapi.Mount{{HostPath: volume, ContainerPath: c.at}}, c.mounts...)
				return config
			}
			// Without the exchange the container starts, so the exchange causes the refusal.
			if err := x.runVictim(t, victim(x.volume(t, "quiet", c.names)), -1); (err != nil) != c.tty {
				t.Fatalf("without an exchange: %v", err)
			}
			volume := x.volume(t, "changing", c.names)
			stop := x.swapIn(t, volume, c.names)
			defer stop()
			x.race(t, victim(volume), outside)
		})
	}
	x.nothingLeft(t)
}

// volume creates a volume with the names in it, and a link beside each.
func (x *trial) volume(t *testing.T, name string, names []swapped) string {
	t.Helper()
	volume := filepath.Join(x.Dir, strings.ReplaceAll(t.Name(), "/", "-")+"-"+name)
	if err := os.Mkdir(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, s := range names {
		path := filepath.Join(volume, s.name)
		if err := s.make(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(s.link, path+".link"); err != nil {
			t.Fatal(err)
		}
	}
	return volume
}

// swapIn runs a container that exchanges the names in a volume with their links, until stop is
// called.
func (x *trial) swapIn(t *testing.T, volume string, names []swapped) (stop func()) {
	t.Helper()
	config := x.Container("swapper", "")
	config.Command = []string{attack.Swapper}
	for _, s := range names {
		config.Command = append(config.Command, "/v/"+s.name, "/v/"+s.name+".link")
	}
	program := attackProgram(t, x.Berth)
	config.Mounts = []*runtimeapi.Mount{
		{HostPath: volume, ContainerPath: "/v", SelinuxRelabel: hasSELinux()},
		{HostPath: program, ContainerPath: attack.Swapper, Readonly: true, SelinuxRelabel: hasSELinux()},
	}
	id := x.Create(x.pod.Sandbox, config, x.pod.Config)
	x.StartContainer(id)
	first := filepath.Join(volume, names[0].name)
	for _, link := range []bool{true, false, true} {
		x.Await("the exchange of "+first, func() bool {
			info, err := os.Lstat(first)
			return err == nil && (info.Mode()&os.ModeSymlink != 0) == link
		})
	}
	return func() {
		status := x.Status(id)
		if status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			lines, _ := harness.LogLines(status.LogPath)
			t.Errorf("the exchange ended by itself: %q", lines)
		}
		if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
		if err := os.Remove(status.LogPath); err != nil {
			t.Error(err)
		}
	}
}

// race creates one container after the other. It checks what each one saw, and the host.
func (x *trial) race(t *testing.T, config *runtimeapi.ContainerConfig, outside string) {
	t.Helper()
	host := func() string {
		var all strings.Builder
		all.WriteString(treeOf(t, outside))
		for _, path := range []string{"/proc/sys/kernel/domainname", "/proc/sys/kernel/core_pattern", "/proc/self/mountinfo"} {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(data)) {
				if path != "/proc/self/mountinfo" || strings.Contains(line, outside) {
					all.WriteString(line)
				}
			}
		}
		return all.String()
	}
	before, started, refusals := host(), 0, map[string]int{}
	for round := range raceRounds {
		err := x.runVictim(t, config, round)
		if err == nil {
			started++
		} else {
			refusals[kindOfRefusal(err)]++
		}
		if after := host(); after != before {
			t.Fatalf("round %d: the host has\n%s\nit had\n%s", round, after, before)
		}
	}
	t.Logf("%d of %d started; refused: %v", started, raceRounds, refusals)
}

// runVictim runs a container to its end, or returns the error of the refusal.
func (x *trial) runVictim(t *testing.T, config *runtimeapi.ContainerConfig, round int) error {
	t.Helper()
	made, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: x.pod.Sandbox, Config: config, SandboxConfig: x.pod.Config})
	if err != nil {
		return err
	}
	defer func() {
		if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ContainerId}); err != nil {
			t.Error(err)
		}
	}()
	if _, err := x.Runtime.StartContainer(x.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		return err
	}
	status := x.AwaitExit(made.ContainerId)
	lines, err := harness.LogLines(status.LogPath)
	if got := strings.Join(strings.Fields(strings.Join(lines, " ; ")), " "); err != nil || got != "end" {
		t.Errorf("round %d: code %d, %v: %s", round, status.ExitCode, err, got)
	}
	return os.Remove(status.LogPath)
}

// kindOfRefusal returns the refusal without the parts that differ between rounds.
func kindOfRefusal(err error) string {
	text := err.Error()
	if _, after, ok := strings.Cut(text, "container init: "); ok {
		text = after
	}
	return text[:min(len(text), 160)]
}
