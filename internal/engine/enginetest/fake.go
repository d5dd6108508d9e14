// Package enginetest holds the conformance suite of engine.Engine, which every
// backend passes, and an engine in memory that passes it too, for the tests of
// the callers of engines.
package enginetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Fake is an engine in memory. It represents the machine: a test that simulates the
// death of a daemon continues with the same Fake. The zero value is not ready; see
// NewFake. Its containers run the commands of FakePrograms.
type Fake struct {
	mu         sync.Mutex
	nextPid    int
	sandboxes  map[string]*fakeSandbox
	containers map[string]*fakeContainer
	listener   *listener
	former     *engine.Former
}

type fakeSandbox struct {
	started, stopped bool
	pid              int
	limits           *runtimeapi.LinuxContainerResources
	released         bool
	foreign          bool
}

type fakeContainer struct {
	spec    *engine.ContainerSpec
	oci     *specs.Spec
	state   engine.State
	pid     int
	exit    *engine.Exit
	limits  *runtimeapi.LinuxContainerResources
	log     *fakeLog
	ended   chan struct{}
	signals []syscall.Signal
	foreign bool
}

// listener receives exits. Its queue has no bound, so that the
// machine never waits for the daemon.
type listener struct {
	ch     chan engine.Exit
	cancel context.CancelFunc
	mu     sync.Mutex
	queue  []engine.Exit
	wake   chan struct{}
}

// NewFake returns an engine that has nothing.
func NewFake() *Fake {
	return &Fake{nextPid: 1000, sandboxes: map[string]*fakeSandbox{}, containers: map[string]*fakeContainer{}}
}

// FakePrograms are the programs that a Fake can run.
func FakePrograms() Programs {
	return Programs{
		Exit:     func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
		Sleep:    []string{"sleep"},
		Stubborn: []string{"stubborn"},
		Missing:  []string{"missing"},
		Echo:     func(text string) []string { return []string{"echo", text} },
		Cat:      []string{"cat"},
	}
}

// Left names everything that was created and not removed.
func (f *Fake) Left() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var left []string
	for id := range f.sandboxes {
		left = append(left, "sandbox "+id)
	}
	for id, c := range f.containers {
		left = append(left, fmt.Sprintf("container %s (%s)", id, c.state))
	}
	slices.Sort(left)
	return left
}

// Signals returns the signals that were sent to a container.
func (f *Fake) Signals(id string) []syscall.Signal {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[id]; c != nil {
		return slices.Clone(c.signals)
	}
	return nil
}

// Lose ends a sandbox's own process, or a container, as if something outside had
// killed it.
func (f *Fake) Lose(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sb := f.sandboxes[id]; sb != nil {
		sb.stopped = true
		f.notify(&engine.Exit{ContainerID: id, Code: 137, At: time.Now()})
		return
	}
	f.end(id, 137, "")
}

// Forget removes everything, as a reboot does.
func (f *Fake) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.sandboxes)
	clear(f.containers)
}

// CreateSandbox implements engine.Engine.
func (f *Fake) CreateSandbox(_ context.Context, spec *engine.SandboxSpec) (*engine.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sandboxes[spec.ID] != nil {
		return nil, fmt.Errorf("cannot create sandbox %q twice: %w", spec.ID, errs.Exists)
	}
	f.sandboxes[spec.ID] = &fakeSandbox{}
	sb := &engine.Sandbox{CgroupParent: "/fake/" + spec.ID}
	own := fakePart{IPC: "/fake/ipc/" + spec.ID, UTS: "/fake/uts/" + spec.ID}
	ns := spec.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns.GetNetwork() != runtimeapi.NamespaceMode_NODE {
		sb.NetNS = "/fake/net/" + spec.ID
	}
	if ns.GetPid() == runtimeapi.NamespaceMode_POD {
		f.nextPid++
		own.PID, own.PodInit, sb.Pid = "/fake/pid/"+spec.ID, 1, f.nextPid
		f.sandboxes[spec.ID].pid = f.nextPid
	}
	var err error
	sb.Backend, err = engine.EncodeBackend(own)
	return sb, err
}

// fakePart is the fake's own part of a sandbox. The namespaces are paths.
type fakePart struct {
	IPC string `json:"ipcns"`
	UTS string `json:"utsns"`
	PID string `json:"pidns,omitempty"`
	// PodInit is 1 of a sandbox whose process is safe, as each is that this fake made.
	PodInit int `json:"podInit,omitempty"`
}

// StartSandbox implements engine.Engine.
func (f *Fake) StartSandbox(_ context.Context, spec *engine.SandboxSpec, made *engine.Sandbox) (*engine.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb := f.sandboxes[spec.ID]
	if sb == nil {
		return nil, fmt.Errorf("cannot start sandbox %q: %w", spec.ID, errs.NotFound)
	}
	sb.started = true
	return made, nil
}

// StopSandbox implements engine.Engine.
func (f *Fake) StopSandbox(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sb := f.sandboxes[id]; sb != nil {
		sb.stopped, sb.pid = true, 0
	}
	return nil
}

// ReleaseSandbox implements engine.Engine.
func (f *Fake) ReleaseSandbox(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb := f.sandboxes[id]
	if sb == nil {
		return nil
	}
	if !sb.stopped {
		return fmt.Errorf("cannot release sandbox %q: it was not stopped: %w", id, errs.State)
	}
	sb.released = true
	return nil
}

// ReleasedSandbox implements engine.Engine.
func (f *Fake) ReleasedSandbox(sb *engine.Sandbox) *engine.Sandbox {
	return &engine.Sandbox{CgroupParent: sb.CgroupParent}
}

// ViewSandbox implements engine.Engine.
func (f *Fake) ViewSandbox(sb *engine.Sandbox) engine.SandboxView {
	var own fakePart
	_ = sb.DecodeBackend(&own) // nothing but the fake's own can be in it
	var view engine.SandboxView
	for _, ns := range []engine.Namespace{
		{Type: "network", Path: sb.NetNS}, {Type: "ipc", Path: own.IPC}, {Type: "uts", Path: own.UTS}, {Type: "pid", Path: own.PID},
	} {
		if ns.Path != "" {
			view.Namespaces = append(view.Namespaces, ns)
		}
	}
	if sb.Pid != 0 && own.PodInit == 0 {
		view.Unsafe = "has an init of old"
	}
	return view
}

// CheckSandbox implements engine.Engine: it refuses nothing.
func (f *Fake) CheckSandbox(*runtimeapi.PodSandboxConfig) error { return nil }

// CheckContainer implements engine.Engine: it refuses nothing.
func (f *Fake) CheckContainer(*runtimeapi.ContainerConfig, *runtimeapi.PodSandboxConfig) error {
	return nil
}

// CheckResources implements engine.Engine, with one of the rules of limits.
func (f *Fake) CheckResources(field string, limits *runtimeapi.LinuxContainerResources) error {
	if score := limits.GetOomScoreAdj(); score < -1000 || score > 1000 {
		return fmt.Errorf("%s.oom_score_adj: %d is out of range: %w", field, score, errs.Invalid)
	}
	return nil
}

// Released reports whether ReleaseSandbox was called for a sandbox.
func (f *Fake) Released(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sandboxes[id] != nil && f.sandboxes[id].released
}

// UpdateSandbox implements engine.Engine.
func (f *Fake) UpdateSandbox(_ context.Context, sb *engine.Sandbox, res *runtimeapi.LinuxContainerResources) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.sandboxes[strings.TrimPrefix(sb.CgroupParent, "/fake/")]
	if known == nil {
		return fmt.Errorf("cannot update sandbox in %q: %w", sb.CgroupParent, errs.NotFound)
	}
	known.limits = res
	return nil
}

// Limits are what Update, or UpdateSandbox, last set of a container or sandbox.
func (f *Fake) Limits(id string) *runtimeapi.LinuxContainerResources {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sb := f.sandboxes[id]; sb != nil {
		return sb.limits
	}
	if c := f.containers[id]; c != nil {
		return c.limits
	}
	return nil
}

// RemoveSandbox implements engine.Engine.
func (f *Fake) RemoveSandbox(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sandboxes, id)
	return nil
}

// Create implements engine.Engine.
func (f *Fake) Create(ctx context.Context, spec *engine.ContainerSpec) (*engine.Container, error) {
	oci, err := f.adjusted(ctx, spec) // before the lock: it may update other containers
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sandboxes[spec.SandboxSpec.ID] == nil {
		return nil, fmt.Errorf("sandbox %q: %w", spec.SandboxSpec.ID, errs.NotFound)
	}
	if f.containers[spec.ID] != nil {
		return nil, fmt.Errorf("container %q: %w", spec.ID, errs.Exists)
	}
	log, err := openFakeLog(spec.LogPath)
	if err != nil {
		return nil, err
	}
	f.nextPid++
	f.containers[spec.ID] = &fakeContainer{
		spec: spec, state: engine.StateCreated, pid: f.nextPid, log: log, ended: make(chan struct{}), oci: oci,
	}
	security := spec.Config.GetLinux().GetSecurityContext()
	uid, gid := security.GetRunAsUser().GetValue(), security.GetRunAsGroup().GetValue()
	made := &engine.Container{User: &engine.User{UID: uid, GID: gid, Groups: append([]int64{gid}, security.GetSupplementalGroups()...)}}
	if command := spec.Config.GetCommand(); program(command) == "absent" {
		f.containers[spec.ID].state = engine.StateBroken
		made.StartError = fmt.Sprintf("there is no program %q", command[0])
	}
	return made, nil
}

// Start implements engine.Engine.
func (f *Fake) Start(_ context.Context, id string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return 0, fmt.Errorf("container %q: %w", id, errs.NotFound)
	}
	if c.state != engine.StateCreated {
		return 0, fmt.Errorf("it is %s: %w", c.state, errs.State)
	}
	c.state = engine.StateRunning
	pid := c.pid
	command := append(slices.Clone(c.spec.Config.GetCommand()), c.spec.Config.GetArgs()...)
	switch program(command) {
	case "missing":
		f.end(id, engine.CodeStartError, engine.ReasonStartError)
		return 0, fmt.Errorf("there is no program %q: %w", command[0], errs.Invalid)
	case "exit":
		f.end(id, exitCode(command), "")
	case "echo":
		err := c.log.write(strings.Join(command[1:], " "))
		f.end(id, 0, "")
		return pid, err
	}
	return pid, nil
}

// program is a command's first word, "sleep" when there is none.
func program(command []string) string {
	if len(command) == 0 {
		return "sleep"
	}
	return command[0]
}

func exitCode(command []string) int32 {
	if len(command) != 2 {
		return 2
	}
	code, err := strconv.ParseInt(command[1], 10, 32)
	if err != nil {
		return 2
	}
	return int32(code)
}

// end ends a container's program. f.mu is held.
func (f *Fake) end(id string, code int32, reason string) {
	c := f.containers[id]
	if c == nil || c.exit != nil {
		return
	}
	c.state, c.pid = engine.StateStopped, 0
	c.exit = &engine.Exit{ContainerID: id, Code: code, At: time.Now(), Reason: reason}
	close(c.ended)
	f.notify(c.exit)
}

// Signal implements engine.Engine.
func (f *Fake) Signal(_ context.Context, id string, sig syscall.Signal, _ bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil || c.state == engine.StateStopped {
		return fmt.Errorf("cannot signal container %q: %w", id, errs.NotFound)
	}
	c.signals = append(c.signals, sig)
	stubborn := c.state == engine.StateRunning && program(c.spec.Config.GetCommand()) == "stubborn"
	switch {
	case sig == syscall.SIGKILL:
		f.end(id, 137, "")
	case sig == syscall.SIGTERM && !stubborn:
		f.end(id, 143, "")
	}
	return nil
}

// Revive lets the program of a container that has ended run again, as an engine may do that is started
// again.
func (f *Fake) Revive(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	c.state, c.exit, c.ended = engine.StateRunning, nil, make(chan struct{})
}

// Update implements engine.Engine.
func (f *Fake) Update(_ context.Context, id string, res *runtimeapi.LinuxContainerResources) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return fmt.Errorf("container %q: %w", id, errs.NotFound)
	}
	c.limits = res
	return nil
}

// Remove implements engine.Engine.
func (f *Fake) Remove(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return nil
	}
	f.end(id, 137, "")
	delete(f.containers, id)
	return c.log.close()
}

// ReopenLog implements engine.LogReopener.
func (f *Fake) ReopenLog(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return fmt.Errorf("cannot reopen the log of container %q: %w", id, errs.NotFound)
	}
	return c.log.reopen()
}

// Stats implements engine.Engine.
func (f *Fake) Stats(_ context.Context, ids []string) (map[string]*runtimeapi.ContainerStats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stats := map[string]*runtimeapi.ContainerStats{}
	for _, id := range ids {
		if c := f.containers[id]; c != nil && c.state == engine.StateRunning {
			at := time.Now().UnixNano()
			stats[id] = &runtimeapi.ContainerStats{
				Cpu:    &runtimeapi.CpuUsage{Timestamp: at, UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: 1}},
				Memory: &runtimeapi.MemoryUsage{Timestamp: at, WorkingSetBytes: &runtimeapi.UInt64Value{Value: 1}},
			}
		}
	}
	return stats, nil
}

// SandboxStats implements engine.Engine.
func (f *Fake) SandboxStats(_ context.Context, sandboxes []engine.SandboxRef) (map[string]*runtimeapi.LinuxPodSandboxStats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stats := map[string]*runtimeapi.LinuxPodSandboxStats{}
	for _, ref := range sandboxes {
		if f.sandboxes[ref.Spec.ID] != nil {
			stats[ref.Spec.ID] = &runtimeapi.LinuxPodSandboxStats{
				Cpu: &runtimeapi.CpuUsage{Timestamp: time.Now().UnixNano(), UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: 1}},
			}
		}
	}
	return stats, nil
}

// List implements engine.Engine.
func (f *Fake) List(context.Context) ([]engine.Actual, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []engine.Actual
	for id, sb := range f.sandboxes {
		if sb.foreign {
			continue
		}
		state := engine.StateBroken
		switch {
		case sb.stopped:
			state = engine.StateStopped
		case sb.started:
			state = engine.StateRunning
		}
		all = append(all, engine.Actual{Kind: engine.KindSandbox, ID: id, State: state, Pid: sb.pid})
	}
	for id, c := range f.containers {
		if !c.foreign {
			all = append(all, engine.Actual{Kind: engine.KindContainer, ID: id, State: c.state, Pid: c.pid})
		}
	}
	return all, nil
}

// Exits implements engine.Engine. A new listener takes the place of the old one.
func (f *Fake) Exits(ctx context.Context) (<-chan engine.Exit, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener != nil {
		f.listener.cancel()
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &listener{ch: make(chan engine.Exit), cancel: cancel, wake: make(chan struct{}, 1)}
	for _, id := range slices.Sorted(maps.Keys(f.containers)) {
		if exit := f.containers[id].exit; exit != nil {
			l.queue = append(l.queue, *exit)
		}
	}
	f.listener = l
	go l.deliver(ctx)
	return l.ch, nil
}

// notify queues an exit for the listener. f.mu is held.
func (f *Fake) notify(exit *engine.Exit) {
	l := f.listener
	if l == nil {
		return
	}
	l.mu.Lock()
	l.queue = append(l.queue, *exit)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *listener) deliver(ctx context.Context) {
	defer close(l.ch)
	for {
		l.mu.Lock()
		queue := l.queue
		l.queue = nil
		l.mu.Unlock()
		for _, exit := range queue {
			select {
			case l.ch <- exit:
			case <-ctx.Done():
				return
			}
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
	}
}

// Info implements engine.Engine.
func (f *Fake) Info(context.Context) (*engine.Info, error) {
	return &engine.Info{
		Name: "fake", Version: "1", CgroupDriver: "cgroupfs",
		Handlers: []*runtimeapi.RuntimeHandler{{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{}}},
		Features: &runtimeapi.RuntimeFeatures{},
	}, nil
}
