package cni

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/all"
)

// referenceModule is the Go module of the plugins that berth has in process.
const referenceModule = "github.com/containernetworking/plugins"

// covered are the versions of the module whose plugins the differential suite compares with
// those in process.
func covered() []string { return []string{"v1.9.1"} }

// way is how a plugin runs.
type way struct {
	// plugin runs in process; nil for a program.
	plugin *plugin.Plugin
	// why is for people.
	why string
}

// inProcess runs plugins in process and remembers what it has seen of their programs.
type inProcess struct {
	off bool // network.inprocess = false

	mu        sync.Mutex
	running   map[string]chan struct{} // calls, also those that their caller has given up; closed at the end
	abandoned int                      // calls that their caller has given up

	buildsMu sync.Mutex       // not mu: no call waits for the files of programs
	builds   map[string]build // by path

	served sync.Map // by the type of the plugin, the last configuration that it can serve, []byte
}

// maxAbandoned is how many calls past their deadline may run before no other pod is attached: most have a thread, and one
// whose IPAM plugin runs beside it has two.
const maxAbandoned = 64

// ownProgram is the package of the program that has berth's plugins.
const ownProgram = "github.com/berthrun/berth/cmd/berth-cni"

// build is what a program's file says of its build.
type build struct {
	size    int64
	changed time.Time
	version string // MODULE@VERSION, or ownProgram, or "" for unknown
}

// findInPath finds a plugin: its program, or the path where there would be one if it runs in process without one.
func (e *executor) findInPath(name string, paths []string) (string, error) {
	path, err := invoke.FindInPath(name, paths)
	if err != nil && !e.own.off && len(paths) > 0 && all.ByType(name) != nil {
		return filepath.Join(paths[0], name), nil
	}
	return path, err
}

// wayOf decides how a verb of the plugin at path runs with a configuration. The error is that it cannot run.
func (e *executor) wayOf(path, verb string, config []byte) (way, error) {
	name := filepath.Base(path)
	p := all.ByType(name)
	switch {
	case p == nil:
		return way{why: "berth has no such plugin"}, nil
	case e.own.off:
		return way{why: "network.inprocess is false"}, nil
	}
	info, err := os.Stat(path)
	absent := errors.Is(err, fs.ErrNotExist)
	if err != nil && !absent {
		return way{}, fmt.Errorf("cannot look at the CNI plugin %s: %w", path, err)
	}
	why := "the program " + path + " is missing"
	if !absent {
		version := e.own.buildOf(path, info)
		if !isCovered(version) {
			return way{why: fmt.Sprintf("its program is %s, and not %s %s", orUnknown(version), referenceModule, strings.Join(covered(), " or "))}, nil
		}
		why = "its program is " + version
	}
	cannot := e.own.cannot(p, config)
	// DEL without a program undoes what was done in process, whatever the host has become since.
	if cannot == "" && (verb != "DEL" || !absent) {
		cannot = p.CannotHere(verb, config)
	}
	switch {
	case cannot == "":
		return way{plugin: p, why: why}, nil
	case absent:
		return way{}, fmt.Errorf("berth's own CNI plugin %s %s, and the program %s is missing; "+
			"change the configuration or install the program: %w", name, cannot, path, errs.Unsupported)
	default:
		return way{why: "berth's own " + cannot}, nil
	}
}

// cannot is p.Cannot, for the configurations that all pods of a network have with less work.
func (o *inProcess) cannot(p *plugin.Plugin, config []byte) string {
	if served, ok := o.served.Load(p.Type); ok && bytes.Equal(served.([]byte), config) {
		return ""
	}
	cannot := p.Cannot(config)
	if cannot == "" {
		o.served.Store(p.Type, config)
	}
	return cannot
}

func isCovered(version string) bool {
	return version == ownProgram || slices.ContainsFunc(covered(), func(v string) bool { return version == referenceModule+"@"+v })
}

func orUnknown(version string) string {
	if version == "" {
		return "of an unknown build"
	}
	return version
}

// buildOf returns the module and version of a program, "" if it does not say: not every plugin is a Go program, and
// distributions build without a version.
func (o *inProcess) buildOf(path string, info fs.FileInfo) string {
	o.buildsMu.Lock()
	known, ok := o.builds[path]
	o.buildsMu.Unlock()
	if ok && known.size == info.Size() && known.changed.Equal(info.ModTime()) {
		return known.version
	}
	b := build{size: info.Size(), changed: info.ModTime()}
	read, err := buildinfo.ReadFile(path)
	switch {
	case err != nil:
	case read.Path == ownProgram:
		b.version = ownProgram
	case read.Main.Version != "" && read.Main.Version != "(devel)":
		b.version = read.Main.Path + "@" + read.Main.Version
	}
	o.buildsMu.Lock()
	defer o.buildsMu.Unlock()
	if o.builds == nil {
		o.builds = map[string]build{}
	}
	o.builds[path] = b
	return b.version
}

// run makes a call in process. At the caller's deadline the call itself goes on: a system call
// cannot be ended. So the next call of the plugin for the same attachment waits for it, and DEL
// undoes all that ADD has done.
func (e *executor) runInProcess(ctx context.Context, p *plugin.Plugin, config []byte, environ []string) ([]byte, error) {
	if variable(environ, "CNI_COMMAND") == "ADD" {
		if err := e.own.mayAdd(); err != nil {
			return nil, err
		}
	}
	end, err := e.own.begin(ctx, attachmentOf(p.Type, environ))
	if err != nil {
		return nil, errStillRuns(p, err)
	}
	type outcome struct {
		out []byte
		err error
	}
	ended := make(chan outcome, 1)
	var stage atomic.Value
	enter := func(name string) { stage.Store(name) }
	enter("start")
	var g giveUp
	in := plugin.Environment{
		HostNetNS: e.hostNetNS, Exec: delegated{e, enter}, Env: environment(environ), Chosen: true, Stage: enter,
	}
	p.Start(ctx, in, config, func(out []byte, err error) {
		end()
		e.own.ended(&g)
		ended <- outcome{out, err}
	})
	select {
	case o := <-ended:
		return o.out, o.err
	case <-ctx.Done():
		e.own.abandon(&g)
		return nil, fmt.Errorf("the CNI plugin %s in berth does not end (stage %q): %w", p.Type, stage.Load(), ctx.Err())
	}
}

var _ plugin.BesideExec = delegated{}

// delegated runs plugins for a plugin in process.
type delegated struct {
	*executor
	// enter gets the name of what the call does, each time that it changes.
	enter func(stage string)
}

// ExecPlugin implements invoke.Exec. An IPAM plugin in process runs on the calling goroutine: that of the plugin which calls it
// has an OS thread of its own, and another goroutine would need another one. The deadline is then that of the calling plugin,
// whose caller names the stage.
func (d delegated) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) (stdout []byte, err error) {
	return d.call(ctx, path, stdin, environ, func(p *plugin.Plugin) ([]byte, error) {
		if !p.IPAM {
			return d.runInProcess(ctx, p, stdin, environ)
		}
		return d.allocate(ctx, p, stdin, environ)
	})
}

// allocate makes a call of an IPAM plugin in process on the calling goroutine.
func (d delegated) allocate(ctx context.Context, p *plugin.Plugin, stdin []byte, environ []string) ([]byte, error) {
	end, err := d.own.begin(ctx, attachmentOf(p.Type, environ))
	if err != nil {
		return nil, errStillRuns(p, err)
	}
	defer end()
	in := plugin.Environment{Exec: d, Env: environment(environ), Chosen: true, Stage: func(name string) { d.enter(p.Type + ": " + name) }}
	return p.Run(ctx, in, stdin)
}

// Beside implements plugin.BesideExec for the IPAM plugins in process.
func (d delegated) Beside(path string, config []byte, stage func(name string)) invoke.Exec {
	how, err := d.wayOf(path, "ADD", config)
	if err != nil || how.plugin == nil || !how.plugin.IPAM {
		return nil // ExecPlugin reports an error
	}
	return beside{delegated{d.executor, stage}, how.plugin}
}

// beside runs one IPAM plugin in process, on a goroutine of its own.
type beside struct {
	delegated
	plugin *plugin.Plugin
}

// ExecPlugin implements invoke.Exec.
func (b beside) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) (stdout []byte, err error) {
	defer b.observe(path, environ, time.Now(), &err)
	return b.allocate(ctx, b.plugin, stdin, environ)
}

// errStillRuns is the error of a call that has waited for another one until its deadline.
func errStillRuns(p *plugin.Plugin, err error) error {
	return fmt.Errorf("an earlier call of the CNI plugin %s for this pod, which has passed its deadline, still runs: %w", p.Type, err)
}

// giveUp is what is known of one call: whether its caller has given it up, and whether it has ended.
type giveUp struct{ abandoned, ended bool }

// abandon counts a call that its caller gives up.
func (o *inProcess) abandon(g *giveUp) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !g.ended {
		g.abandoned = true
		o.abandoned++
	}
}

// ended counts a call that has ended.
func (o *inProcess) ended(g *giveUp) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g.ended = true
	if g.abandoned {
		o.abandoned--
	}
}

// mayAdd is kind Unavailable while too many calls do not end.
func (o *inProcess) mayAdd() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.abandoned < maxAbandoned {
		return nil
	}
	return fmt.Errorf("%d calls of CNI plugins in berth have passed their deadlines and still run, so no pod is attached until some end; "+
		"look for what holds them up, such as a lock of iptables or of the IPAM store: %w", o.abandoned, errs.Unavailable)
}

// begin waits until no other call has the key. An empty key is for calls that need not wait.
func (o *inProcess) begin(ctx context.Context, key string) (end func(), err error) {
	if key == "" {
		return func() {}, nil
	}
	own := make(chan struct{})
	for {
		o.mu.Lock()
		other := o.running[key]
		if other == nil {
			if o.running == nil {
				o.running = map[string]chan struct{}{}
			}
			o.running[key] = own
			o.mu.Unlock()
			break
		}
		o.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.running, key)
		close(own)
	}, nil
}

// attachmentOf names the attachment that a call is for, with the plugin; "" for none.
func attachmentOf(plugin string, environ []string) string {
	container := variable(environ, "CNI_CONTAINERID")
	if container == "" {
		return ""
	}
	return plugin + " " + container + " " + variable(environ, "CNI_IFNAME")
}

// variable returns the last value of a variable, "" for none.
func variable(environ []string, name string) string {
	for _, v := range slices.Backward(environ) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}
