package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/native/apparmor"
	"github.com/berthrun/berth/internal/engine/native/probe"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// maxSeccompProfile bounds a profile on the node.
const maxSeccompProfile = 4 << 20

// seccompCache keeps the default profile of each set of capabilities: the profile
// allows system calls by them. The zero value is ready.
type seccompCache struct {
	mu       sync.Mutex
	profiles map[string]*specs.LinuxSeccomp
}

// maxProfiles bounds the cache: there are few sets, unless somebody plays.
const maxProfiles = 64

func (c *seccompCache) defaultProfile(capabilities []string) (*specs.LinuxSeccomp, error) {
	key := strings.Join(capabilities, " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	if profile, ok := c.profiles[key]; ok {
		return profile, nil
	}
	profile, err := seccomp.GetDefaultProfile(specWith(capabilities))
	if err != nil {
		return nil, fmt.Errorf("cannot make the default seccomp profile: %w", err)
	}
	if c.profiles == nil || len(c.profiles) >= maxProfiles {
		c.profiles = map[string]*specs.LinuxSeccomp{}
	}
	c.profiles[key] = profile
	return profile, nil
}

// seccompOf returns the filter that the request asks for, nil for none. The result
// is shared: it is not to be changed.
func (e *Engine) seccompOf(ctx context.Context, config *runtimeapi.ContainerConfig) (*specs.LinuxSeccomp, error) {
	defaults := e.rules().Defaults
	asked, err := ocispec.SeccompOf(config, ocispec.SeccompProfile{})
	if err != nil {
		return nil, err
	}
	given, err := ocispec.SeccompOf(config, defaults.Seccomp)
	if err != nil {
		return nil, err
	}
	capabilities, err := ocispec.Capabilities(config, e.host, defaults.Capabilities)
	if err != nil {
		return nil, err
	}
	filter, err := e.filter(ctx, given, capabilities.Permitted)
	if err != nil && given != asked {
		err = fmt.Errorf("defaults.seccomp of the configuration, as the container asks for none: %w", err)
	}
	return filter, err
}

// filter loads a profile for a process that has these capabilities; nil for none.
func (e *Engine) filter(ctx context.Context, asked ocispec.SeccompProfile, capabilities []string) (*specs.LinuxSeccomp, error) {
	switch {
	case asked == (ocispec.SeccompProfile{}):
		return nil, nil //nolint:nilnil // no filter is no failure
	case !e.host.Seccomp:
		return nil, fmt.Errorf("config.linux.security_context.seccomp: seccomp is not enabled in your kernel, cannot run with a profile: %w", errs.Unsupported)
	case asked.Default:
		return e.seccomp.defaultProfile(capabilities)
	}
	data, err := probe.Ask(ctx, e.probes, "read the seccomp profile "+asked.Path, func() ([]byte, error) {
		return sysfile.ReadRegular(asked.Path, maxSeccompProfile)
	})
	if errors.Is(err, errs.NotFound) {
		return nil, fmt.Errorf("config.linux.security_context.seccomp.localhost_ref: the profile %s does not exist: %w", asked.Path, errs.Invalid)
	}
	if err != nil {
		return nil, err
	}
	profile, err := loadSeccomp(data, capabilities)
	if err != nil {
		return nil, fmt.Errorf("config.linux.security_context.seccomp.localhost_ref: cannot use the profile %s: %w", asked.Path, err)
	}
	return profile, nil
}

// loadSeccomp reads a profile for a container with these capabilities. Kind Invalid
// when it is none.
func loadSeccomp(data []byte, capabilities []string) (*specs.LinuxSeccomp, error) {
	var rules seccomp.Seccomp
	if err := json.Unmarshal(data, &rules); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	if i := slices.Index(rules.Syscalls, nil); i >= 0 { // the library would fall over it
		return nil, fmt.Errorf("syscalls[%d] is null: %w", i, errs.Invalid)
	}
	profile, err := seccomp.LoadProfile(string(data), specWith(capabilities))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	if profile == nil {
		return nil, fmt.Errorf("it has neither a defaultAction nor syscalls, so it would filter nothing: %w", errs.Invalid)
	}
	return profile, nil
}

func specWith(capabilities []string) *specs.Spec {
	return &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}}
}

// apparmorOf returns the profile that a container runs under, loaded, "" for none.
func (e *Engine) apparmorOf(ctx context.Context, config *runtimeapi.ContainerConfig) (string, error) {
	asked, err := ocispec.AppArmorOf(config)
	if err != nil {
		return "", err
	}
	return e.appArmorHost().Profile(ctx, asked)
}

func (e *Engine) appArmorHost() *apparmor.Host {
	if e.rules().AppArmorOff {
		return apparmor.Off()
	}
	return e.apparmor
}
