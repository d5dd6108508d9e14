// Package native runs sandboxes and containers on this host through the
// supervisor.
//
// A sandbox is a set of pinned namespaces, a cgroup and a few files; it has a
// process only when its containers share a PID namespace, which needs an init.
// The places of all that it makes follow from the ids, so that List finds it and Remove
// removes it after any crash.
package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/apparmor"
	"github.com/berthrun/berth/internal/engine/device"
	"github.com/berthrun/berth/internal/engine/hostfacts"
	"github.com/berthrun/berth/internal/engine/hostpath"
	"github.com/berthrun/berth/internal/engine/meter"
	"github.com/berthrun/berth/internal/engine/native/bundle"
	"github.com/berthrun/berth/internal/engine/native/checkpoint"
	"github.com/berthrun/berth/internal/engine/native/handler"
	"github.com/berthrun/berth/internal/engine/native/nspool"
	"github.com/berthrun/berth/internal/engine/native/podinit"
	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/engine/native/userns"
	"github.com/berthrun/berth/internal/engine/ocihooks"
	"github.com/berthrun/berth/internal/engine/podcgroup"
	"github.com/berthrun/berth/internal/engine/seccomp"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Config configures an Engine.
type Config struct {
	// Instance names this berth among others on the host.
	Instance string
	// StateDir is on tmpfs, for bundles and pins.
	StateDir string
	// NetNSDir is where network namespaces are pinned.
	NetNSDir string
	// ReadyNamespaces is how many network namespaces are made ahead, 0 for none.
	ReadyNamespaces int
	// CgroupDriver is "cgroupfs" or "systemd"; "" is systemd where systemd is
	// pid 1, else cgroupfs.
	CgroupDriver string
	// CgroupPrefix begins the names of scopes; "" is "cri-containerd".
	CgroupPrefix string
	// DefaultParent is the cgroup of sandboxes whose request names none, "" for
	// one named after the instance.
	DefaultParent string
	// PodInit is the static program (berth-supervisor) whose copy is the init of shared
	// PID namespaces, and that holds user namespaces while they are made.
	PodInit string
	// SELinux selects what is labelled. SELinuxCategories is the number of categories that
	// separate sandboxes, 0 for all 1024.
	SELinux           selinux.Mode
	SELinuxCategories int
	// StatsPeriod is the time between two looks at the CPU that containers use, 0 for
	// the default.
	StatsPeriod time.Duration

	Supervisor *supervisor.Client
	Rootfs     image.Rootfs
	// After, if not nil, is closed when what only speeds up later requests may be prepared.
	After <-chan struct{}
	// Log is slog's default when nil.
	Log *slog.Logger
}

// Rules apply to new sandboxes and containers.
type Rules struct {
	// Handlers are the runtime handlers.
	Handlers handler.Table
	// NoOwnInit has libcontainer create all containers.
	NoOwnInit bool
	// MaxLogLine is how many bytes of text a line of a container's log holds, 0
	// for the default.
	MaxLogLine int
	// LogRate is how many bytes a second a container may write to its log, 0 for
	// any number.
	LogRate int64
	// Devices say which devices containers get.
	Devices device.Rules
	// SharedVolumes gives volumes that are relabelled a label that all containers
	// may use, instead of the pod's own.
	SharedVolumes bool
	// AppArmorOff runs containers without a profile, and refuses pods that demand one.
	AppArmorOff bool
	// AppArmorProfile is what is loaded in the place of berth's own profile, "" for that.
	AppArmorProfile string
	// Seccomp are the operator's own profiles.
	Seccomp seccomp.Rules
	// AbsentSources are paths of the host that are not made for a mount of them.
	AbsentSources []string
	// NoImageVolumes leaves the paths that images declare as volumes to the root
	// filesystem.
	NoImageVolumes bool
	// BlockIOClasses is the path of the file of classes of block IO, "" for none. IgnoreNoBlockIO and IgnoreNoRDT
	// create containers that choose a class also where there are none; see package ioclass.
	BlockIOClasses               string
	IgnoreNoBlockIO, IgnoreNoRDT bool
	// WritableLimit is how many bytes a container may write to its root filesystem, 0 for any number.
	WritableLimit int64
	// HookDirs are directories of OCI hooks; see package ocihooks.
	HookDirs []string
	// PodAnnotations and ContainerAnnotations are patterns of package path: what
	// they match is passed on to the hooks of containers.
	PodAnnotations, ContainerAnnotations []string
	// AllowedAnnotations are those of CRI-O's that pods may use; see package request.
	AllowedAnnotations []string
	// Checkpoints allows to write containers into archives, with the program CRIU, an absolute path.
	Checkpoints bool
	CRIU        string
	// Restorer is the runc that restores the containers of pods that berth itself runs. Its name is that of the key.
	Restorer handler.Handler
	// Defaults hold for containers that say nothing, Sysctls for pods, by name.
	Defaults ocispec.Defaults
	Sysctls  map[string]string
}

// SetRules changes the rules for sandboxes and containers that are created from now on. It asks the
// programs of handlers that it does not know for their features.
func (e *Engine) SetRules(rules Rules) {
	e.programs.All(rules.Handlers)
	if tool := e.criu.Load(); rules.Checkpoints && (tool == nil || tool.Path != rules.CRIU) {
		e.criu.Store(&checkpoint.Tool{Path: rules.CRIU})
	}
	e.inForce.Store(&rules)
	for _, warning := range append(e.handlerWarnings(&rules), e.fileWarnings(context.Background())...) {
		e.log.Warn(warning)
	}
}

func (e *Engine) rules() *Rules { return e.inForce.Load() }

// warm prepares the kernel for the migration of a container's init, where one follows.
func (e *Engine) warm() {
	if initMigrates(e.cfg.CgroupDriver, e.rules()) {
		e.warmer.Warm()
	}
}

// initMigrates reports whether something moves the inits of containers into their cgroups: libcontainer, or
// systemd. Berth's own init joins its cgroup without a wait, and a migration for the kernel's sake would delay
// it: until the end of that migration's wait, the kernel makes no cgroup and starts no process in one.
func initMigrates(driver string, rules *Rules) bool {
	return rules.NoOwnInit || driver == podcgroup.Systemd
}

// Engine is an engine.Engine.
type Engine struct {
	cfg Config
	// inForce are the current rules, never nil.
	inForce  atomic.Pointer[Rules]
	programs handler.Prober
	// criu is what Rules.CRIU names, nil before the first rules with checkpoints.
	criu atomic.Pointer[checkpoint.Tool]
	// fits is for the image files of an archive, which are decoded.
	fits        *semaphore.Weighted
	log         *slog.Logger
	tree        *cgroup.Tree
	host        ocispec.Host
	probes      *probe.Pool
	claims      hostpath.Claims
	netns       *nspool.Pool
	seccomp     *seccomp.Loader
	hooks       ocihooks.Reader
	apparmor    *apparmor.Host
	meter       *meter.Meter
	userns      *userns.Maker
	bundles     bundle.Store
	podCgroups  *podcgroup.Manager
	podInitRoot *podinit.Root
	// rootContainer is the root of the root containers of sandboxes.
	rootContainer *podinit.Root
	selinux       *selinux.Labeller
	relabel       *selinux.Relabeller
	cgroups       *cgroups
	warmer        *cgroup.Warmer
}

var _ engine.Engine = (*Engine)(nil)

// New finds the abilities of the host and prepares the directories. The rules hold until
// SetRules.
func New(cfg Config, rules Rules) (*Engine, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	tree, err := cgroup.Find()
	if err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, log: cfg.Log, tree: tree,
		probes:   &probe.Pool{},
		apparmor: apparmor.Find("berth-" + cfg.Instance),
		selinux:  selinux.New(selinux.Host{Categories: cfg.SELinuxCategories}, cfg.SELinux),
		relabel:  selinux.NewRelabeller(selinux.Attribute),
		warmer:   tree.NewWarmer(),
		fits:     semaphore.NewWeighted(1),
		userns:   userns.NewMaker(cfg.PodInit, cfg.Rootfs.CanMap),
		podCgroups: podcgroup.New(podcgroup.Config{
			Instance: cfg.Instance, Driver: cfg.CgroupDriver, Prefix: cfg.CgroupPrefix, DefaultParent: cfg.DefaultParent,
			Running: runningOf(cfg.Supervisor), Log: cfg.Log,
		}, tree),
		podInitRoot:   podinit.NewRoot(filepath.Join(cfg.StateDir, "pod-init"), cfg.PodInit),
		rootContainer: podinit.NewReadableRoot(filepath.Join(cfg.StateDir, "root-container"), cfg.PodInit),
	}
	e.SetRules(rules)
	e.bundles = bundle.Store{Root: filepath.Join(cfg.StateDir, "bundles")}
	e.cgroups = &cgroups{list: cfg.Supervisor.List, exists: e.bundles.Exists, known: map[string]cgroup.Paths{}}
	if e.host, err = hostfacts.Find(tree); err != nil {
		return nil, err
	}
	e.seccomp = seccomp.NewLoader(e.host, e.probes)
	for _, dir := range []string{cfg.StateDir, e.sandboxesDir(), e.bundles.Root} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make a state directory: %w", err)
		}
	}
	// User namespaces must reach the root of the pods' inits in it.
	if err := os.Chmod(cfg.StateDir, 0o711); err != nil {
		return nil, fmt.Errorf("cannot open the state directory to user namespaces: %w", err)
	}
	if err := sysns.EnsureNetNSDir(cfg.NetNSDir); err != nil {
		return nil, err
	}
	e.podCgroups.Adopt(func() ([]string, error) { return e.filesOfSandboxes(filepath.Base(e.sandboxPaths("").ownCgroup)) })
	if err := errors.Join(e.adoptLabels(), e.podInitRoot.Detach(), e.rootContainer.Detach()); err != nil {
		return nil, err
	}
	e.netns = nspool.New(cfg.ReadyNamespaces, cfg.After)
	e.meter = meter.New(tree, cfg.Rootfs, cfg.StatsPeriod)
	return e, nil
}

// Close stops the meter and removes the namespaces that were made ahead. Sandboxes and
// containers stay.
func (e *Engine) Close() error {
	e.meter.Close()
	return errors.Join(e.podInitRoot.Detach(), e.rootContainer.Detach(), e.netns.Close())
}

// filesOfSandboxes returns where each sandbox's directory has a file, if it has it.
func (e *Engine) filesOfSandboxes(name string) ([]string, error) {
	dirs, err := names(e.sandboxesDir())
	if err != nil {
		return nil, err
	}
	files := make([]string, 0, len(dirs))
	for _, dir := range dirs {
		files = append(files, filepath.Join(e.sandboxesDir(), dir, name))
	}
	return files, nil
}

func (c *Config) complete() error {
	if c.Instance == "" || !filepath.IsAbs(c.StateDir) || !filepath.IsAbs(c.NetNSDir) {
		return fmt.Errorf("cannot make an engine without an instance, a state directory and a directory of network namespaces: %w", errs.Invalid)
	}
	if c.Supervisor == nil || c.Rootfs == nil {
		return errors.New("cannot make an engine without a supervisor and root filesystems")
	}
	switch c.CgroupDriver {
	case podcgroup.Cgroupfs, podcgroup.Systemd:
	case "":
		c.CgroupDriver = podcgroup.Cgroupfs
		if _, err := os.Stat("/run/systemd/system"); err == nil {
			c.CgroupDriver = podcgroup.Systemd
		}
	default:
		return fmt.Errorf("cgroup driver %q: %w", c.CgroupDriver, errs.Invalid)
	}
	if c.CgroupPrefix == "" {
		c.CgroupPrefix = "cri-containerd"
	}
	if c.DefaultParent == "" {
		c.DefaultParent = "/berth-" + c.Instance
		if c.CgroupDriver == podcgroup.Systemd {
			// A dash would mean one slice in another, shared with other instances.
			c.DefaultParent = "berth_" + c.Instance + ".slice"
		}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return nil
}

// Pools implements engine.Pooled.
func (e *Engine) Pools() []figures.Pool { return []figures.Pool{e.netns.Figures()} }

// SupervisorFigures implements engine.Supervised.
func (e *Engine) SupervisorFigures(ctx context.Context) (*figures.Supervisor, error) {
	info, err := e.cfg.Supervisor.Info(ctx)
	if err != nil {
		return nil, err
	}
	counted := &figures.Supervisor{
		Pid: info.Pid, KeeperPid: info.KeeperPid, Descriptors: info.Descriptors, DescriptorLimit: info.DescriptorLimit,
		Starts: info.Starts, StartReasons: info.StartReasons,
	}
	if info.Logs != nil {
		counted.Logs = *info.Logs
	}
	return counted, nil
}

// Info describes the engine and the host.
func (e *Engine) Info(ctx context.Context) (*engine.Info, error) {
	info, err := e.cfg.Supervisor.Info(ctx)
	if err != nil {
		return nil, err
	}
	return &engine.Info{
		Name:         "berth",
		Version:      info.Version,
		CgroupDriver: e.cfg.CgroupDriver,
		Handlers:     e.handlers(),
		HandlerInfo:  e.handlerInfo(),
		Checkpoint:   e.checkpointInfo(),
		Features:     e.features(),
		HugePages:    e.host.Hugetlb,
		Warnings:     append(e.hostWarnings(ctx), info.Warnings...),

		Starters:       info.Starters,
		StarterReasons: info.StarterReasons,
	}, nil
}
