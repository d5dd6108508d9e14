package doctorcmd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

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
	// Daemon has the defaults if there is a Fault.
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
	if err != nil {
		cfg = config.DefaultDaemon()
	}
	return Configuration{Daemon: cfg, File: file, Fault: err}
}

// Berth are the settings that the checks of a machine compare it with.
func (c Configuration) Berth() doctor.Berth {
	cfg := c.Daemon
	b := doctor.Berth{
		File: c.File, Fault: c.Fault, Engine: cfg.Engine, Socket: cfg.SocketPath(), Root: cfg.Root, State: cfg.State,
		Network: cfg.Network.Mode, ConfDir: cfg.Network.ConfDir, BinDirs: cfg.Network.BinDirs, Subnets: cfg.Network.Subnets,
		CgroupDriver: cfg.Runtime.CgroupDriver,
		SELinux:      cfg.Runtime.SELinux, AppArmor: cfg.Runtime.AppArmor, AppArmorProfile: cfg.Runtime.AppArmorProfile,
		SeccompProfile: cfg.Runtime.SeccompProfile, RegistryDirs: cfg.Image.RegistryConfigDirs,
	}
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
