package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/errs"
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
	// Podman is true for podman, which serves the engine's API.
	Podman bool
	// Warnings are sentences of the engine about its host.
	Warnings []string
}

// replacements bounds how often facts are read again because the engine was replaced meanwhile.
const replacements = 3

// Facts reads what the engine can do.
func (c *Client) Facts(ctx context.Context) (*Facts, error) {
	for range replacements {
		version, err := c.Version(ctx)
		if err != nil {
			return nil, err
		}
		got, err := c.Info(ctx, client.InfoOptions{})
		if err != nil {
			return nil, err
		}
		// Both are of one engine, unless it was replaced in between.
		if s, err := c.session(ctx); err != nil {
			return nil, err
		} else if _, fresh := c.version.read(); fresh {
			return factsOf(s.version, &version, &got.Info), nil
		}
	}
	return nil, fmt.Errorf("docker info: each answer of %s is from another version of the engine: %w", c.endpoint, errs.Unavailable)
}

func factsOf(apiVersion string, version *client.ServerVersionResult, info *system.Info) *Facts {
	f := &Facts{
		Version: version.Version, APIVersion: apiVersion,
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
	f.Podman = slices.ContainsFunc(version.Components, func(c system.ComponentVersion) bool { return c.Name == "Podman Engine" })
	return f
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
