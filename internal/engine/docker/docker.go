// Package docker runs sandboxes and containers through a Docker Engine on this host.
//
// A sandbox is a pause container without a network of the engine's: berth pins its network
// namespace and attaches its own network to it. Containers join the namespaces of the pause
// container. Every container has a label with its CRI id, by which List finds it and Remove
// removes it after any crash.
package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/apparmor"
	"github.com/berthrun/berth/internal/engine/device"
	"github.com/berthrun/berth/internal/engine/docker/checkpoints"
	"github.com/berthrun/berth/internal/engine/docker/endings"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/engine/docker/logs"
	"github.com/berthrun/berth/internal/engine/docker/oomscore"
	"github.com/berthrun/berth/internal/engine/docker/pause"
	"github.com/berthrun/berth/internal/engine/docker/runtimecgroup"
	"github.com/berthrun/berth/internal/engine/docker/strays"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/engine/docker/users"
	"github.com/berthrun/berth/internal/engine/hostfacts"
	"github.com/berthrun/berth/internal/engine/hostpath"
	"github.com/berthrun/berth/internal/engine/meter"
	"github.com/berthrun/berth/internal/engine/podcgroup"
	"github.com/berthrun/berth/internal/engine/seccomp"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Config configures an Engine.
type Config struct {
	// Instance names this berth among others that use the same Docker Engine.
	Instance string
	// StateDir is on tmpfs, for what the engine notes of sandboxes and logs.
	StateDir string
	// NetNSDir is where network namespaces are pinned.
	NetNSDir string
	// CgroupDriver is the driver that the configuration demands, "" for that of the Docker
	// Engine.
	CgroupDriver string
	// Adoption is of the pods that dockershim or cri-dockerd made.
	Adoption Adoption
	// StatsPeriod is the time between two looks at the CPU that containers use, 0 for the
	// default.
	StatsPeriod time.Duration
	// RuntimeCgroup is the cgroup that the engine's own processes are kept in, "" to leave them
	// where they are.
	RuntimeCgroup string

	Client *api.Client
	// Log is slog's default when nil.
	Log *slog.Logger
}

// Rules apply to new sandboxes and containers.
type Rules struct {
	// MaxLogLine is how many bytes of text a line of a container's log holds, 0 for the
	// default.
	MaxLogLine int
	// AppArmorOff runs containers without a profile, and refuses pods that demand one.
	AppArmorOff bool
	// AppArmorProfile replaces berth's own profile, "" for that.
	AppArmorProfile string
	// Seccomp are the operator's own profiles.
	Seccomp seccomp.Rules
	// Devices select the devices of containers. The Docker Engine injects devices of CDI itself.
	Devices device.Rules
	// AllowedAnnotations are those of CRI-O's that pods may use; see package request.
	AllowedAnnotations []string
	// AbsentSources are paths of the host that are not made for a mount of them.
	AbsentSources []string
	// UnusedKeys are keys of the configuration that somebody has set and that have no effect with this
	// engine. Info names them.
	UnusedKeys []string
	// Defaults hold for containers that say nothing, Sysctls for pods, by name.
	Defaults ocispec.Defaults
	Sysctls  map[string]string
}

// Engine is an engine.Engine.
type Engine struct {
	cfg        Config
	client     *api.Client
	log        *slog.Logger
	inForce    atomic.Pointer[Rules]
	facts      atomic.Pointer[translate.Facts]
	driver     string // the cgroup driver that pods have
	host       ocispec.Host
	tree       *cgroup.Tree
	podCgroups *podcgroup.Manager
	probes     *probe.Pool
	claims     hostpath.Claims
	seccomp    *seccomp.Loader
	apparmor   *apparmor.Host
	meter      *meter.Meter
	logs       *logs.Manager
	objects    *objects
	attached   attached
	pause      *pause.Loader
	unstarted  *endings.Unstarted
	strays     *strays.Killer
	users      *users.Reader
	former     checkpoints.Dirs
	listener   atomic.Pointer[exitListener]
	// subscribedAt is when the events of the Docker Engine were subscribed to the last time, in
	// nanoseconds since 1970: the engine may have been away until then.
	subscribedAt atomic.Int64
	// engineStarted is when the Docker Engine was started, as of that subscription; zero if not known.
	engineStarted atomic.Pointer[time.Time]
	// scores has which oom_score_adj the Docker Engine can set.
	scores *oomscore.Scores
	// keeper is nil without a RuntimeCgroup.
	keeper *runtimecgroup.Keeper
}

var _ engine.Engine = (*Engine)(nil)

// New reads what the Docker Engine can do and prepares the directories. Kind Unavailable when
// it does not answer, State when its cgroup driver is not the configured one. The rules hold
// until SetRules.
func New(ctx context.Context, cfg Config, rules Rules) (*Engine, error) {
	if cfg.Instance == "" || !filepath.IsAbs(cfg.StateDir) || !filepath.IsAbs(cfg.NetNSDir) || cfg.Client == nil {
		return nil, fmt.Errorf("cannot make an engine without an instance, a state directory, a directory of network namespaces and a client: %w", errs.Invalid)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	e := &Engine{
		cfg: cfg, client: cfg.Client, log: cfg.Log,
		apparmor:  apparmor.Find("berth-" + cfg.Instance),
		unstarted: endings.NewUnstarted(),
		pause:     pause.NewLoader(cfg.Client),
		users:     users.New(cfg.Client),
		former:    checkpoints.Dirs{Roots: cfg.Adoption.Roots, Quarantine: cfg.Adoption.Quarantine},
		scores:    scoresOf(cfg.Client, cfg.Log),
	}
	e.SetRules(rules)
	facts, err := e.readFacts(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkDriver(cfg.CgroupDriver, facts.CgroupDriver); err != nil {
		return nil, err
	}
	if err := e.findHost(facts.CgroupDriver); err != nil {
		return nil, err
	}
	e.objects = newObjects(cfg.Client, cfg.Instance, e.tree, cfg.Log)
	for _, dir := range []string{e.sandboxesDir(), e.containersDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make a state directory: %w", err)
		}
	}
	if err := sysns.EnsureNetNSDir(cfg.NetNSDir); err != nil {
		return nil, err
	}
	e.podCgroups.Adopt(e.ownCgroupFiles)
	if cfg.RuntimeCgroup != "" {
		e.keeper, err = runtimecgroup.Start(runtimecgroup.Options{Endpoint: cfg.Client.Endpoint(), Cgroup: cfg.RuntimeCgroup, Tree: e.tree, Log: cfg.Log})
		if err != nil {
			return nil, err
		}
	}
	e.logs = logs.New(logs.Options{Client: cfg.Client, Log: cfg.Log, MaxLine: rules.MaxLogLine})
	e.meter = meter.New(e.tree, writable{e.objects}, cfg.StatsPeriod)
	return e, nil
}

func scoresOf(c *api.Client, log *slog.Logger) *oomscore.Scores {
	return oomscore.New(func(ctx context.Context) (sysproc.OOMScoreLimit, error) {
		return runtimecgroup.EngineScores(ctx, c.Endpoint())
	}, log)
}

// findHost finds the abilities of the host.
func (e *Engine) findHost(driver string) (err error) {
	e.driver = driver
	if e.tree, err = cgroup.Find(); err != nil {
		return err
	}
	if e.host, err = hostfacts.Find(e.tree); err != nil {
		return err
	}
	parent := "/berth-" + e.cfg.Instance
	if driver == podcgroup.Systemd {
		// A dash would mean one slice in another, shared with other instances.
		parent = "berth_" + e.cfg.Instance + ".slice"
	}
	e.podCgroups = podcgroup.New(podcgroup.Config{
		Instance: e.cfg.Instance, Driver: driver, Prefix: "docker", DefaultParent: parent,
		Running: e.runningOf, Log: e.log,
	}, e.tree)
	e.strays = &strays.Killer{Cgroups: e.podCgroups, Driver: driver, Log: e.log}
	e.probes = &probe.Pool{}
	e.seccomp = seccomp.NewLoader(e.host, e.probes)
	return nil
}

// ownCgroupFiles lists the records of the cgroup parents that the engine made.
func (e *Engine) ownCgroupFiles() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(e.sandboxesDir(), "*", ownCgroupFile))
	if err != nil {
		return nil, fmt.Errorf("cannot list the sandboxes: %w", err)
	}
	return files, nil
}

// runningOf returns the first processes of the running containers of a sandbox.
func (e *Engine) runningOf(ctx context.Context, sandboxID string) (pids []int, err error) {
	running, err := e.runningIn(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	for i := range running {
		got, err := e.client.ContainerInspect(ctx, running[i].ID, client.ContainerInspectOptions{})
		if err != nil && !errors.Is(err, errs.NotFound) {
			return nil, err
		}
		if state := got.Container.State; state != nil && state.Pid != 0 {
			pids = append(pids, state.Pid)
		}
	}
	return pids, nil
}

// runningIn returns the containers of a sandbox that run, without its pause container.
func (e *Engine) runningIn(ctx context.Context, sandboxID string) ([]container.Summary, error) {
	running, err := e.client.ContainerList(ctx, client.ContainerListOptions{
		Filters: make(client.Filters).Add("label", labels.SandboxID+"="+sandboxID, labels.Instance+"="+e.cfg.Instance),
	})
	return running.Items, err
}

// checkDriver refuses a configured cgroup driver that the Docker Engine does not use: the
// limits of pods would be in cgroups without their containers.
func checkDriver(configured, engines string) error {
	if configured != "" && configured != engines {
		return fmt.Errorf("berth's runtime.cgroup_driver is %q, and the Docker engine uses %q "+
			"(misconfiguration: kubelet cgroup driver: %q is different from docker cgroup driver: %q); "+
			`remove runtime.cgroup_driver, so that berth uses the engine's driver, or set "exec-opts": ["native.cgroupdriver=%s"] in the `+
			"engine's daemon.json and restart the engine: %w",
			configured, engines, configured, engines, configured, errs.State)
	}
	return nil
}

// SetRules changes the rules for sandboxes and containers that are created from now on.
func (e *Engine) SetRules(rules Rules) { e.inForce.Store(&rules) }

func (e *Engine) rules() *Rules { return e.inForce.Load() }

// Close ends the background work. Sandboxes and containers stay.
func (e *Engine) Close() error {
	if l := e.listener.Load(); l != nil {
		l.end()
	}
	e.meter.Close()
	e.logs.Close()
	if e.keeper != nil {
		e.keeper.Close()
	}
	return nil
}

func (e *Engine) sandboxesDir() string { return filepath.Join(e.cfg.StateDir, "sandboxes") }

func (e *Engine) containersDir() string { return filepath.Join(e.cfg.StateDir, "containers") }
