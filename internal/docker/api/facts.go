package api

import (
	"context"
	"strings"

	"github.com/moby/moby/client"
)

// Facts are what an engine says of itself and of its host.
type Facts struct {
	// Version is the engine's own, such as "20.10.24"; engines that were built from source may
	// report a word. APIVersion is the version that calls use, such as "1.41".
	Version, APIVersion string
	// CgroupDriver is "cgroupfs" or "systemd": an engine that reports none has cgroupfs.
	CgroupDriver string
	CgroupV2     bool
	// The security options of the engine.
	Seccomp, AppArmor, SELinux, UserNSRemap, Rootless bool
	// SwapLimit is true where the kernel limits swap.
	SwapLimit bool
	// LoggingDriver is that of containers that name none, such as "json-file".
	LoggingDriver string
	// StorageDriver is the graph driver or snapshotter. ContainerdStore is true for an engine
	// that keeps images in containerd: their ids are digests of manifests.
	StorageDriver   string
	ContainerdStore bool
	// RootDir is the engine's directory of data on the host.
	RootDir string
	// Runtimes are the names of its OCI runtimes.
	Runtimes    []string
	LiveRestore bool
	// Warnings are sentences of the engine about its host.
	Warnings []string
}

// Facts reads what the engine can do.
func (c *Client) Facts(ctx context.Context) (*Facts, error) {
	version, err := c.Version(ctx)
	if err != nil {
		return nil, err
	}
	got, err := c.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, err
	}
	info := &got.Info
	f := &Facts{
		Version: version.Version, APIVersion: c.moby.ClientVersion(),
		CgroupDriver: info.CgroupDriver, CgroupV2: info.CgroupVersion == "2", SwapLimit: info.SwapLimit,
		LoggingDriver: info.LoggingDriver, StorageDriver: info.Driver, RootDir: info.DockerRootDir,
		LiveRestore: info.LiveRestoreEnabled, Warnings: info.Warnings,
	}
	if f.CgroupDriver == "" {
		f.CgroupDriver = "cgroupfs"
	}
	for _, option := range info.SecurityOptions {
		f.addSecurityOption(option)
	}
	for _, pair := range info.DriverStatus {
		if pair[0] == "driver-type" && strings.HasPrefix(pair[1], "io.containerd.snapshotter") {
			f.ContainerdStore = true
		}
	}
	for name := range info.Runtimes {
		f.Runtimes = append(f.Runtimes, name)
	}
	return f, nil
}

// addSecurityOption reads one option, such as "name=seccomp,profile=builtin".
func (f *Facts) addSecurityOption(option string) {
	name, _, _ := strings.Cut(strings.TrimPrefix(option, "name="), ",")
	switch name {
	case "seccomp":
		f.Seccomp = true
	case "apparmor":
		f.AppArmor = true
	case "selinux":
		f.SELinux = true
	case "userns":
		f.UserNSRemap = true
	case "rootless":
		f.Rootless = true
	}
}
