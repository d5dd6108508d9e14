//go:build integration && e2e

package integration

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/hostileimage"
	"github.com/berthrun/berth/test/harness"
)

// hostileConfig is one row: an image whose configuration was made to harm.
type hostileConfig struct {
	name, lesson string
	// change gets the image. outside is a directory of the host, to which the link /l leads.
	change func(spec *imagetest.Spec, outside string)
	// refused and inside are as in hostileImage. script is what the container runs, if not "true".
	refused, inside, script string
}

// TestHostileConfigurations creates containers of images whose configuration was made to harm.
func TestHostileConfigurations(t *testing.T) {
	x := newTrial(t, harness.Options{})
	outside := filepath.Join(x.Dir, "outside")
	hostileimage.Decoy(t, outside)
	watched := hostileimage.Watch(t, []string{outside}, nil)
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "configuration\tseen in\toutcome")
	rows := [][]string{{"a configuration with", "seen in", "berth"}}
	for i, c := range hostileConfigs() {
		t.Run(c.name, func(t *testing.T) {
			fmt.Fprintln(table, c.name+"\t"+c.lesson+"\t"+c.try(t, x, fmt.Sprintf("docker.io/library/hostile-config:%d", i), outside))
			for _, difference := range watched.Differences(t) {
				t.Errorf("outside of the container: %s", difference)
			}
		})
		rows = append(rows, []string{c.name, c.lesson, hostileimage.Does(c.refused, c.inside)})
	}
	x.nothingLeft(t)
	table.Flush()
	t.Logf("\n%s", text.String())
	hostileimage.Page(t, hostilePage, "## Configurations of images", rows)
}

// try runs a container of the image, and returns the rest of its row.
func (c hostileConfig) try(t *testing.T, x *trial, ref, outside string) string {
	t.Helper()
	spec := harness.BusyboxSpec(x.Berth, ref, imagetest.File{Path: "/l", Symlink: outside}, imagetest.File{Path: "/up", Symlink: strings.Repeat("../", 20) + outside[1:]})
	c.change(&spec, outside)
	x.importImage(t, spec)
	defer x.removeImage(t, ref)
	script := "true"
	if c.script != "" {
		script = c.script
	}
	config := x.Container("hostile", script)
	config.Image.Image = ref
	made, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: x.pod.Sandbox, Config: config, SandboxConfig: x.pod.Config})
	if err == nil {
		defer func() {
			if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ContainerId}); err != nil {
				t.Error(err)
			}
		}()
		_, err = x.Runtime.StartContainer(x.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId})
	}
	switch {
	case c.refused == "" && err != nil:
		t.Errorf("refused: %.1000v", err)
	case c.refused != "" && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.refused)):
		t.Errorf("error %.1000v, want InvalidArgument and %q", err, c.refused)
	}
	if err != nil {
		return fmt.Sprintf("refused: %.150s", status.Convert(err).Message())
	}
	exit := x.AwaitExit(made.ContainerId)
	if exit.ExitCode != 0 {
		lines, _ := harness.LogLines(exit.LogPath)
		t.Errorf("the container exits with %d: %q", exit.ExitCode, lines)
	}
	return "runs"
}

func hostileConfigs() []hostileConfig {
	const links = "podman CVE-2025-9566, buildah CVE-2024-1753"
	user := func(name string, text string) hostileConfig {
		return hostileConfig{name: "the user `" + strings.ReplaceAll(name, "\n", `\n`) + "`", lesson: "containerd CVE-2024-40635, CVE-2026-46680", refused: text, change: func(spec *imagetest.Spec, _ string) { spec.User = name }}
	}
	directory := func(name, directory, refused string) hostileConfig {
		return hostileConfig{name: name, lesson: "runc CVE-2024-21626, " + links, change: func(spec *imagetest.Spec, outside string) {
			spec.WorkingDir = strings.ReplaceAll(directory, "OUTSIDE", outside)
		}, refused: refused, inside: "the directory is made in the container", script: `[ ! -e secret ]`}
	}
	volume := func(name, path string) hostileConfig {
		return hostileConfig{name: name, lesson: links, change: func(spec *imagetest.Spec, outside string) {
			spec.Volumes = []string{strings.ReplaceAll(path, "OUTSIDE", outside)}
		}, inside: "it is below the container's root"}
	}
	value := func(name, inside, script string, change func(spec *imagetest.Spec, outside string)) hostileConfig {
		return hostileConfig{name: name, lesson: "CRI-O CVE-2026-15809", inside: inside, script: script, change: change}
	}
	return []hostileConfig{
		directory("a working directory that is a link to the host", "/l", "cannot make the working directory: mkdir /l"),
		directory("a working directory below a link to the host", "/l/new/dir", "cannot make the working directory: mkdir /l"),
		directory("a working directory below a relative link", "/up/new", "cannot make the working directory: mkdir /up"),
		directory("a working directory with `..`", "/../../../..OUTSIDE/new", ""),
		directory("a working directory `/proc/self/fd/7`", "/proc/self/fd/7", "working directory is outside of the container's root"),
		volume("a volume that is a link to the host", "/l"), volume("a volume below a link to the host", "/l/new"), volume("a volume with `..`", "/../../../..OUTSIDE/dir"),
		volume("a volume on `/proc/self`", "/proc/self/x"), volume("a volume on the root", "/"),
		user("4294967296", "4294967296"), user("-1", "-1"), user("0x0", "0x0"), user("1e3", "1e3"), user(" 0", " 0"), user("../../etc/passwd", "etc/passwd"), user("root\nx", "root"),
		value("a line break in a variable", "it is part of the value", `case "$HOME" in *root::0*) ;; *) exit 1;; esac`, func(spec *imagetest.Spec, _ string) {
			spec.Env = append(spec.Env, "HOME=/\nroot::0:0::/:/bin/sh")
		}),
		value("a NUL in a variable", "the value ends there", `[ -z "$A$B" ]`, func(spec *imagetest.Spec, _ string) { spec.Env = append(spec.Env, "A=\x00B=c") }),
		value("a variable without `=`", "the container runs", "", func(spec *imagetest.Spec, _ string) { spec.Env = append(spec.Env, "NOTHING") }),
		value("`LD_PRELOAD` of a file of the host", "in the container, the path is another file", "", func(spec *imagetest.Spec, outside string) {
			spec.Env = append(spec.Env, "LD_PRELOAD="+outside+"/secret")
		}),
		value("a stop signal that is none", "the container gets SIGTERM", "", func(spec *imagetest.Spec, _ string) { spec.StopSignal = "SIGEVIL" }),
	}
}
