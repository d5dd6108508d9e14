package doctorcmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/configcheck"
	"github.com/berthrun/berth/internal/cli/daemon"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/leaks"
	"github.com/berthrun/berth/internal/network/cni/plugin/all"
	"github.com/berthrun/berth/internal/provision/doctor"
)

// ConfigFile is the configuration that berth.service names.
const ConfigFile = "/etc/berth/berth.toml"

// Configuration is berth's configuration, as far as it could be read.
type Configuration struct {
	// Daemon has the default of each key that has a Fault.
	Daemon *config.Daemon
	// File is empty if there is none. Fault is nil for no fault.
	File  string
	Fault error
}

// Load reads the configuration of berth.service, the defaults if there is none.
func Load() Configuration {
	file := ConfigFile
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		file = ""
	}
	cfg, err := config.LoadDaemon(file, nil)
	if cfg == nil {
		cfg = config.DefaultDaemon()
	}
	return Configuration{Daemon: cfg, File: file, Fault: err}
}

// LoadFrom returns the configuration of the berth that serves an endpoint: the daemon itself says it. That of berth.service
// is read from its file, which may be newer than the daemon. It is also the answer if the daemon does not answer, with the
// endpoint for its socket: then the checks say so. An error is of kind Unsupported if the answer is not that of a berth, and
// Invalid if the endpoint is none.
func LoadFrom(ctx context.Context, endpoint string) (Configuration, error) {
	unit := Load()
	socket := strings.TrimPrefix(endpoint, socketScheme)
	if unit.Fault == nil && unit.Daemon.SocketPath() == socket {
		return unit, nil
	}
	running, err := ask(ctx, endpoint)
	switch {
	case errors.Is(err, errs.Unsupported), errors.Is(err, errs.Invalid):
		return Configuration{}, err
	case err != nil:
		unit.Daemon.Listen = socketScheme + socket
		return unit, nil
	}
	return Configuration{Daemon: running, File: "the configuration of the berth at " + socketScheme + socket}, nil
}

const socketScheme = "unix://"

// ask returns the configuration of the daemon at an endpoint.
func ask(ctx context.Context, endpoint string) (*config.Daemon, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	conn, err := criclient.Dial(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	version, err := conn.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return nil, err
	}
	if name := version.GetRuntimeName(); name != "berth" {
		return nil, fmt.Errorf("the runtime at %s is %s, and doctor examines berth: without an endpoint it examines this machine and the berth of berth.service: %w", endpoint, name, errs.Unsupported)
	}
	status, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return nil, err
	}
	cfg, err := config.ReadShown(status.GetInfo()["config"])
	if err != nil {
		return nil, fmt.Errorf("the berth at %s does not say its configuration: %w", endpoint, err)
	}
	return cfg, nil
}

// Berth are the settings that the checks of a machine compare it with.
func (c Configuration) Berth() doctor.Berth {
	cfg := c.Daemon
	b := doctor.Berth{
		File: c.File, Fault: c.Fault, FileFaults: configcheck.Faults(cfg, daemon.CheckErofs), Unused: daemon.UnusedWarning(cfg), CredentialFaults: configcheck.Credentials(cfg), Engine: cfg.Engine, Socket: cfg.SocketPath(), Root: cfg.Root, State: cfg.State,
		Network: cfg.Network.Mode, ConfDir: cfg.Network.ConfDir, BinDirs: cfg.Network.BinDirs, Subnets: cfg.Network.Subnets, Bridge: daemon.Leftovers(cfg).Bridge,
		CgroupDriver: cfg.Runtime.CgroupDriver,
		SELinux:      cfg.Runtime.SELinux, AppArmor: cfg.Runtime.AppArmor, AppArmorProfile: cfg.Runtime.AppArmorProfile,
		SeccompProfile: cfg.Runtime.SeccompProfile, RegistryDirs: cfg.Image.RegistryConfigDirs, Snapshotter: cfg.Image.Snapshotter,
	}
	for key, bytes := range cfg.WritableLimits() {
		b.WritableLimits = append(b.WritableLimits, fmt.Sprintf("%s is %d", key, bytes))
	}
	slices.Sort(b.WritableLimits)
	if cfg.Network.InProcess {
		for _, plugin := range all.Plugins() {
			b.InProcess = append(b.InProcess, plugin.Type)
		}
	}
	if binary, err := daemon.SupervisorBinary(cfg); err == nil {
		b.Supervisor = binary
	}
	return b
}

// askFor bounds a question to berth: one that hangs must not hold up the other checks.
const askFor = 10 * time.Second

// leftovers says where this berth has what may be left behind.
func (c Configuration) leftovers() leaks.Config {
	cfg := daemon.Leftovers(c.Daemon)
	cfg.Host = leaks.Kernel{}
	cfg.Ask = func(ctx context.Context) (leaks.Answer, error) {
		ctx, cancel := context.WithTimeout(ctx, askFor)
		defer cancel()
		conn, err := criclient.Dial(ctx, c.Daemon.Listen)
		if err != nil {
			return leaks.Answer{}, err
		}
		defer conn.Close()
		owned, err := conn.Berth.ListOwned(ctx)
		if errors.Is(err, errs.Unsupported) {
			return leaks.Answer{}, nil // an older berth; its records are on disk as well
		}
		if err != nil {
			return leaks.Answer{}, err
		}
		return leaks.Answer{IDs: owned.IDs, State: daemon.Resolved(owned.State), Builtin: owned.NetworkMode != "cni"}, nil
	}
	return cfg
}
