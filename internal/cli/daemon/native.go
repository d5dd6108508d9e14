package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/berthrun/berth/internal/cli/daemon/jobcalls"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/engine/device"
	"github.com/berthrun/berth/internal/engine/native"
	"github.com/berthrun/berth/internal/engine/native/handler"
	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/engine/seccomp"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/erofs"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/local"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/spawn"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/undo"
	"github.com/berthrun/berth/internal/version"
)

// openNative begins to open the image store, finds or starts the supervisor, and creates the engine that
// uses both.
func openNative(ctx context.Context, cfg *config.Daemon, pulls image.PullObserver, answering <-chan struct{}, log *slog.Logger) (made *backend, err error) {
	var u undo.Stack
	defer u.OnError(ctx, &err)
	jobs := jobcalls.NewImages(log)
	images, err := startImages(ctx, cfg, pulls, jobs, answering, log)
	if err != nil {
		return nil, fmt.Errorf("cannot open the image store: %w", err)
	}
	u.Push("close the image store", func(context.Context) error { return images.Close() })

	binary, err := SupervisorBinary(cfg)
	if err != nil {
		return nil, err
	}
	client, err := openSupervisor(ctx, cfg, binary, answering, log)
	if err != nil {
		return nil, err
	}
	u.Push("leave the supervisor", func(context.Context) error { return client.Close() })

	engine, err := newNative(cfg, images, client, binary, answering, log)
	if err != nil {
		return nil, err
	}
	images.CountWritten(engine.Written)
	return &backend{
		engine: engine,
		images: images,
		jobs:   jobs,
		await: func(ctx context.Context) error {
			if err := images.Await(ctx); err != nil {
				return fmt.Errorf("cannot open the image store: %w", err)
			}
			return nil
		},
		apply: func(cfg *config.Daemon) {
			images.SetPullRules(pullRules(cfg))
			images.SetImportRules(importRules(cfg))
			engine.SetRules(engineRules(cfg))
		},
		close: func() error { return errors.Join(engine.Close(), client.Close(), images.Close()) },
	}, nil
}

// startImages opens the image store in the background, once the daemon answers.
func startImages(ctx context.Context, cfg *config.Daemon, pulls image.PullObserver, jobs image.Jobs, answering <-chan struct{}, log *slog.Logger) (*local.Images, error) {
	root := filepath.Join(cfg.Root, imagesDir)
	if cfg.Runtime.SELinux != "off" {
		err := selinux.LabelStore(ctx, root, func(files int64) {
			log.Info("labelling the image store for SELinux, once", "store", root, "files", files)
		})
		if err != nil {
			return nil, err
		}
	}
	unpacking, err := unpackCgroup(cfg)
	if err != nil {
		return nil, err
	}
	return local.Start(ctx, local.Config{
		Root:         root,
		State:        filepath.Join(cfg.State, imagesDir),
		Snapshotter:  snapshotter(cfg),
		Snapshotters: cfg.Image.ProxySnapshotters(),
		PullRules:    pullRules(cfg),
		UnpackHelper: program.Own(),
		CgroupParent: unpacking,
		UserAgent:    "berth/" + version.Version,
		Observer:     pulls,
		Jobs:         jobs,
		Log:          log,
		After:        answering,

		ReadyRootfs:   cfg.Pools.RootFilesystems,
		FirstProject:  uint32(cfg.Runtime.FirstProjectID),
		PreloadedDirs: cfg.Image.PreloadedDirs,
		ImportRules:   importRules(cfg),
	})
}

// unpackCgroup is the path of image.unpack_cgroup.
func unpackCgroup(cfg *config.Daemon) (string, error) {
	group := cfg.Image.UnpackCgroup
	switch {
	case group == "":
		return "/berth-" + instanceOf(cfg) + "-unpack", nil
	case filepath.IsAbs(group):
		return group, nil
	}
	path, err := cgroup.SlicePath(group)
	if err != nil {
		return "", fmt.Errorf("image.unpack_cgroup: %w", err)
	}
	return path, nil
}

// snapshotter is image.snapshotter.
func snapshotter(cfg *config.Daemon) local.Snapshotter {
	if cfg.Image.Snapshotter == "auto" {
		return local.AutoSnapshotter
	}
	return local.Snapshotter(cfg.Image.Snapshotter)
}

// checkOverlay is the config.Check that overlays can be mounted, where the configuration says that they are.
func checkOverlay(cfg *config.Daemon, report func(key, format string, args ...any)) {
	if cfg.Engine == "docker" || snapshotter(cfg) != local.OverlaySnapshotter {
		return
	}
	root := filepath.Join(cfg.Root, imagesDir)
	if err := local.ProbeOverlay(root); errors.Is(err, errs.Unsupported) {
		report("image.snapshotter", "overlay: %s: %s; auto or native copies the image for each container", root, errs.Message(err))
	}
}

// erofsHandlers lists the handlers with the snapshotter erofs.
func erofsHandlers(cfg *config.Daemon) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(cfg.Handlers)) {
		if cfg.Engine != "docker" && cfg.Handlers[name].Snapshotter == config.ErofsSnapshotter {
			names = append(names, name)
		}
	}
	return names
}

// CheckErofs is the config.Check that the kernel has EROFS, where a handler has the snapshotter erofs.
func CheckErofs(cfg *config.Daemon, report func(key, format string, args ...any)) {
	for _, name := range erofsHandlers(cfg) {
		if err := erofs.Probe(); errors.Is(err, errs.Unsupported) {
			report("handlers."+name+".snapshotter", "erofs: %s", errs.Message(err))
		}
	}
}

// checkErofsRoot is the config.Check that overlays can be mounted, where a handler has the snapshotter erofs.
func checkErofsRoot(cfg *config.Daemon, report func(key, format string, args ...any)) {
	root := filepath.Join(cfg.Root, imagesDir)
	for _, name := range erofsHandlers(cfg) {
		if err := local.ProbeOverlay(root); errors.Is(err, errs.Unsupported) {
			report("handlers."+name+".snapshotter", "erofs: its root filesystems are overlays, and %s can hold none: %s; use a root on another disk", root, errs.Message(err))
		}
	}
}

// SupervisorBinary finds berth-supervisor: as configured, beside this program, or
// in PATH. Kind NotFound if it is nowhere.
func SupervisorBinary(cfg *config.Daemon) (string, error) {
	const name = "berth-supervisor"
	if cfg.Runtime.Supervisor != "" {
		return cfg.Runtime.Supervisor, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor in PATH; set the configuration key runtime.supervisor: %w", name, errs.NotFound)
	}
	return filepath.Abs(path)
}

// openSupervisor finds or starts the supervisor. Under systemd the default instance
// has a unit for it.
func openSupervisor(ctx context.Context, cfg *config.Daemon, binary string, answering <-chan struct{}, log *slog.Logger) (*supervisor.Client, error) {
	state := filepath.Join(cfg.State, supervisorDir)
	options := spawn.Options{
		Binary:   binary,
		StateDir: state,
		LogFile:  filepath.Join(cfg.State, "supervisor.log"),
		Cgroup:   "berth-" + instanceOf(cfg) + "-supervisor",
	}
	if instanceOf(cfg) == defaultInstance && os.Getenv("NOTIFY_SOCKET") != "" {
		options.Unit = "berth-supervisor.service"
	}
	if err := spawn.Ensure(ctx, options); err != nil {
		return nil, err
	}
	return supervisor.Connect(ctx, supervisor.Options{
		Socket: spawn.Socket(state), Logger: log, After: answering,
		Restart: func(ctx context.Context) error { return spawn.Ensure(ctx, options) },
	})
}

func newNative(cfg *config.Daemon, images *local.Images, client *supervisor.Client, binary string, answering <-chan struct{}, log *slog.Logger) (*native.Engine, error) {
	driver := cfg.Runtime.CgroupDriver
	if driver == "auto" {
		driver = ""
	}
	return native.New(native.Config{
		Instance:     instanceOf(cfg),
		StateDir:     filepath.Join(cfg.State, engineDir),
		NetNSDir:     cfg.Network.NetNSDir,
		CgroupDriver: driver,
		CgroupPrefix: cfg.Runtime.ScopePrefix,
		PodInit:      binary,

		SELinux:           selinux.Mode(cfg.Runtime.SELinux),
		SELinuxCategories: cfg.Runtime.SELinuxRange,
		ReadyNamespaces:   cfg.Pools.NetworkNamespaces,
		StatsPeriod:       time.Duration(cfg.Stats.Period),

		Supervisor: client,
		Rootfs:     images,
		After:      answering,
		Log:        log,
	}, engineRules(cfg))
}

func pullRules(cfg *config.Daemon) local.PullRules {
	return local.PullRules{
		RegistryConfigDirs:     cfg.Image.RegistryConfigDirs,
		SearchRegistries:       cfg.Image.SearchRegistries,
		CredentialFiles:        cfg.Image.CredentialFiles,
		NoProgressTimeout:      time.Duration(cfg.Image.NoProgressTimeout),
		MaxConcurrentDownloads: cfg.Image.MaxConcurrentDownloads,
		MaxTotalDownloads:      cfg.Image.MaxTotalDownloads,
		DownloadRate:           int64(cfg.Image.DownloadRateMiB) << 20,
		LayerConnections:       cfg.Image.LayerConnections,
		LayerPart:              int64(cfg.Image.LayerPartMiB) << 20,
		PartsMemory:            int64(cfg.Image.PartsMemoryMiB) << 20,
		MaxLayer:               int64(cfg.Image.MaxLayerGiB) << 30,
		DecryptionKeysDir:      cfg.Image.DecryptionKeysDir,
		PolicyFile:             cfg.Image.Policy,
		PolicyDir:              cfg.Image.PolicyDir,
		LookasideDir:           cfg.Image.LookasideDir,
		VerifierDir:            cfg.Image.VerifierDir,
		UnnamedSignatures:      cfg.Image.UnnamedSignatures,
		Platforms:              slices.Compact(slices.Sorted(maps.Values(platformsOf(cfg)))),
	}
}

func importRules(cfg *config.Daemon) local.ImportRules {
	return local.ImportRules{Dirs: cfg.Image.ImportDirs, Pin: cfg.Image.ImportPinned}
}

// handlersOf are the runtime handlers of the configuration.
func handlersOf(cfg *config.Daemon) handler.Table {
	table := handler.Table{Handlers: map[string]handler.Handler{}, Default: cfg.Runtime.DefaultHandler}
	for name, h := range cfg.Handlers {
		entry := handler.Handler{
			Name: name, Kind: handler.Kind(h.Kind), Path: h.Path, Args: h.Args, Options: h.Options,
			PrivilegedWithoutHost: h.PrivilegedNoDevices, PrivilegedAllAllowed: h.PrivilegedAllowDevice,
			PodAnnotations: h.PodAnnotations, ContainerAnnotations: h.ContainerAnnotations,
			HookDirs: h.HookDirs, SeccompProfile: h.SeccompProfile, BaseSpec: h.BaseSpec, CgroupWritable: h.CgroupWritable,
			Snapshotter: h.Snapshotter, Platform: platformOf(h),
		}
		if h.WritableLimit != nil {
			entry.WritableLimit = new(int64(*h.WritableLimit))
		}
		if entry.Kind == handler.Shim {
			entry.Path = handler.ShimPath(h.Path)
			entry.IsSandbox, entry.SandboxAPI = h.Sandbox != "", h.Sandbox == config.SandboxAPI
			entry.Options = handler.ShimOptions(entry.Path, h.Options)
		}
		if entry.Kind != handler.Builtin {
			entry.Root = cmp.Or(h.Root, filepath.Join(cfg.State, handlersDir, name))
		}
		table.Handlers[name] = entry
	}
	return table
}

// snapshottersOf returns the proxy snapshotters by the handlers that have one, "" for the default handler.
func snapshottersOf(cfg *config.Daemon) map[string]string {
	byHandler := map[string]string{}
	if cfg.Engine != "native" {
		return byHandler
	}
	for name, h := range cfg.Handlers {
		if h.Snapshotter == "" {
			continue
		}
		byHandler[name] = h.Snapshotter
		if name == cfg.Runtime.DefaultHandler {
			byHandler[""] = h.Snapshotter
		}
	}
	return byHandler
}

// platformsOf returns the platforms by the handlers that have one which is not the node's.
func platformsOf(cfg *config.Daemon) map[string]string {
	byHandler := map[string]string{}
	if cfg.Engine != "native" {
		return byHandler
	}
	for name, h := range cfg.Handlers {
		if platform := platformOf(h); platform != "" {
			byHandler[name] = platform
		}
	}
	return byHandler
}

// platformOf returns the platform of a handler in its short form, "" for the node's.
func platformOf(h config.Handler) string {
	platform, _ := image.ParsePlatform(h.Platform) // the configuration was checked
	return platform
}

// platformFor returns the platform of the images of a handler's pods, "" for the node's.
func platformFor(cfg *config.Daemon, name string) (string, error) {
	if _, ok := cfg.Handlers[name]; !ok || cfg.Engine != "native" {
		return "", fmt.Errorf("unknown runtime handler %q: %w", name, errs.Invalid)
	}
	return platformsOf(cfg)[name], nil
}

// maxLogLine is the longest line of a container's log that is not split.
const maxLogLine = 1 << 20

func engineRules(cfg *config.Daemon) native.Rules {
	defaults := cfg.Default.Read()
	rules := native.Rules{
		Handlers:   handlersOf(cfg),
		NoOwnInit:  !cfg.Runtime.OwnInit,
		MaxLogLine: cfg.Runtime.MaxLogLineSize,
		LogRate:    int64(cfg.Runtime.LogRateMiB) << 20,
		Devices: device.Rules{
			OwnedByUser:           cfg.Runtime.DeviceOwnership,
			PrivilegedWithoutHost: cfg.Runtime.PrivilegedNoDevices,
			PrivilegedAllAllowed:  cfg.Runtime.PrivilegedAllowDevice,
			CDIDirs:               cfg.Runtime.CDISpecDirs,
			Added:                 defaults.Devices,
		},
		SharedVolumes:        cfg.Runtime.SELinuxVolume == "shared",
		AppArmorOff:          cfg.Runtime.AppArmor == "off",
		AppArmorProfile:      cfg.Runtime.AppArmorProfile,
		Seccomp:              seccomp.Rules{Default: cfg.Runtime.SeccompProfile, Privileged: cfg.Runtime.SeccompPrivileged},
		AbsentSources:        cfg.Runtime.AbsentSources,
		NoImageVolumes:       cfg.Runtime.ImageVolumes == "ignore",
		WritableLimit:        int64(cfg.Default.WritableLimit),
		BlockIOClasses:       cfg.Runtime.BlockIOFile,
		IgnoreNoBlockIO:      cfg.Runtime.IgnoreNoBlockIO,
		IgnoreNoRDT:          cfg.Runtime.IgnoreNoRDT,
		HookDirs:             cfg.Runtime.HookDirs,
		PodAnnotations:       cfg.Runtime.PodAnnotations,
		ContainerAnnotations: cfg.Runtime.ContainerAnnotations,
		AllowedAnnotations:   cfg.Runtime.AllowedAnnotations,
		Checkpoints:          cfg.Checkpoint.Enabled,
		CRIU:                 cfg.Checkpoint.CRIU,
		Restorer: handler.Handler{
			Name: "checkpoint.runtime", Kind: handler.OCI, Path: cfg.Checkpoint.Runtime, Root: filepath.Join(cfg.State, restorerDir),
		},
		Defaults: defaults.Container,
		Sysctls:  defaults.Sysctls,
	}
	if rules.MaxLogLine == 0 {
		rules.MaxLogLine = maxLogLine
	}
	return rules
}
