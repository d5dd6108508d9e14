// Package render turns the tasks of a node into files without a machine: user data of cloud-init, a
// configuration of Ignition, a tree of files, a script.
//
// It is pure: equal inputs give equal outputs. What only a machine can find or do is listed by name
// and with the reason, never left out silently.
package render

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// Input is what is rendered.
type Input struct {
	Target provision.Target
	// Distro and Arch (as Go has it) are those of the machine that it is for.
	Distro distro.Distro
	Arch   string
	// Node is the text of the node file and NodePath where it goes; it is left out where
	// NodePath is empty or a task writes that file.
	Node     []byte
	NodePath string
	// Programs are paths that the machine must have: no rendering creates them.
	Programs []string
	// Berth is where the machine can fetch berth, so that it does at first boot what a format
	// unsupported express; the zero value for nowhere.
	Berth Fetched
	// Credentials are the files that the node file names, path to content; they go along
	// with it.
	Credentials map[string]string
}

// Fetched is a program to fetch: an http(s) URL and a digest, "sha256:…".
type Fetched struct{ Source, Digest string }

// Output is a rendering.
type Output struct {
	// Text is the one file that a format is; nil for a tree.
	Text []byte
	// Tree is what a directory holds, parents first; nil for one file.
	Tree []Entry
	// Left lists what the rendering lacks.
	Left []Left
	// Secrets names the secret files in the rendering.
	Secrets []string
}

// Left is a part of the node that a rendering lacks.
type Left struct {
	// What is a task, a program or a check: "image registry.example/base:1".
	What string
	// Reason says why, and who does it instead.
	Reason string
}

// parts is an input in the order of the graph.
type parts struct {
	Input
	tasks   []provision.Task
	left    []Left
	refused []error
	secrets []string
}

// take orders the input and finds what no format supports.
func take(in Input) (*parts, error) {
	order, err := reconciler.Order(in.Target)
	if err != nil {
		return nil, err
	}
	p := &parts{Input: in}
	written := map[string]bool{}
	for _, task := range order {
		switch task := task.(type) {
		case tasks.Data, tasks.Held: // they only record state
		case tasks.Command:
			p.leave(task.ID(), "runs on a machine that runs; apply does it")
		default:
			p.tasks = append(p.tasks, task)
		}
		for _, f := range filesOf(task) {
			written[f.Path] = true
			if isSecret(f, task) {
				p.secrets = append(p.secrets, f.Path)
			}
		}
	}
	p.description(written)
	for _, program := range in.Programs {
		p.leave("program "+program, "must be on the machine; give --berth and --supervisor, or runtime.assets, to have it fetched")
	}
	for _, gate := range in.Target.Gates {
		p.leave("health checks of "+gate.Unit, "only `berth node apply` makes them, and goes back when they fail")
	}
	return p, nil
}

// description adds the node file and the files that it names, unless a task writes it.
func (p *parts) description(written map[string]bool) {
	if p.NodePath == "" {
		return
	}
	var files []tasks.File
	for _, name := range slices.Sorted(maps.Keys(p.Credentials)) {
		files = append(files, tasks.File{Path: name, Content: p.Credentials[name], Mode: 0o600, Secret: true})
	}
	// A secret file's content is in the node file, too.
	files = append(files, tasks.File{Path: p.NodePath, Content: string(p.Node), Mode: 0o600, Secret: len(p.secrets) > 0})
	for _, f := range slices.Backward(files) {
		if written[f.Path] {
			continue
		}
		p.tasks = append([]provision.Task{f}, p.tasks...)
		if f.Secret {
			p.secrets = append(p.secrets, f.Path)
		}
	}
}

// filesOf are the regular files that a task writes whole.
func filesOf(task provision.Task) []tasks.File {
	if writer, ok := task.(tasks.Writer); ok {
		return writer.Writes()
	}
	return nil
}

// isSecret reports whether a file is secret: to the tasks, or as a user's own file that others may
// not read.
func isSecret(f tasks.File, task provision.Task) bool {
	return f.Secret || strings.HasPrefix(task.Meta().Why, "files[") && f.Mode&0o004 == 0
}

func (p *parts) leave(what, format string, args ...any) {
	p.left = append(p.left, Left{What: what, Reason: fmt.Sprintf(format, args...)})
}

// refuse reports a part without which the rendering would not be a node.
func (p *parts) refuse(what, format string, args ...any) {
	p.refused = append(p.refused, fmt.Errorf("%s: %s: %w", what, fmt.Sprintf(format, args...), errs.Unsupported))
}

// output ends a rendering.
func (p *parts) output(out Output) (Output, error) {
	if err := errors.Join(p.refused...); err != nil {
		return Output{}, err
	}
	out.Left, out.Secrets = p.left, p.secrets
	return out, nil
}

// octal is a mode in octal digits.
func octal(mode fs.FileMode) string { return fmt.Sprintf("%04o", bits(mode)) }

// bits is a mode as chmod(2) has it.
func bits(mode fs.FileMode) int {
	n := int(mode.Perm())
	for _, special := range []struct {
		flag  fs.FileMode
		value int
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if mode&special.flag != 0 {
			n |= special.value
		}
	}
	return n
}

// owner is an owner or group by name or number, root when it is not given.
func owner(name string) string {
	if name == "" {
		return "root"
	}
	return name
}

// id is the number that a name is, if it is one.
func id(name string) (int, bool) {
	n, err := strconv.Atoi(name)
	return n, err == nil && n >= 0
}

// isOn reports whether a unit should start at boot.
func isOn(flag *bool) bool { return flag != nil && *flag }

// fetchable are the sources that a program of the machine can fetch with curl or wget.
func fetchable(ref provision.AssetRef, local bool) []string {
	return slices.DeleteFunc(slices.Clone(ref.Sources), func(source string) bool {
		return !strings.HasPrefix(source, "http://") && !strings.HasPrefix(source, "https://") && (!local || !strings.HasPrefix(source, "/"))
	})
}
