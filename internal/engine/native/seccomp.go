package native

import (
	"context"
	"crypto/sha256"
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
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// maxSeccompProfile bounds a profile on the node.
const maxSeccompProfile = 4 << 20

// seccompCache keeps what profiles come to for a set of capabilities, by which they allow
// system calls. The zero value is ready.
type seccompCache struct {
	mu       sync.Mutex
	profiles map[string]*specs.LinuxSeccomp
}

// maxProfiles bounds the cache: there are few sets, unless somebody plays.
const maxProfiles = 64

func (c *seccompCache) defaultProfile(capabilities []string) (*specs.LinuxSeccomp, error) {
	profile, err := c.get("built in", capabilities, func() (*specs.LinuxSeccomp, error) {
		return seccomp.GetDefaultProfile(specWith(capabilities))
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make the default seccomp profile: %w", err)
	}
	return profile, nil
}

// load is loadSeccomp.
func (c *seccompCache) load(data []byte, capabilities []string) (*specs.LinuxSeccomp, error) {
	sum := sha256.Sum256(data)
	return c.get(string(sum[:]), capabilities, func() (*specs.LinuxSeccomp, error) { return loadSeccomp(data, capabilities) })
}

func (c *seccompCache) get(profile string, capabilities []string, read func() (*specs.LinuxSeccomp, error)) (*specs.LinuxSeccomp, error) {
	key := profile + " " + strings.Join(capabilities, " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	if filter, ok := c.profiles[key]; ok {
		return filter, nil
	}
	filter, err := read()
	if err != nil {
		return nil, err
	}
	if c.profiles == nil || len(c.profiles) >= maxProfiles {
		c.profiles = map[string]*specs.LinuxSeccomp{}
	}
	c.profiles[key] = filter
	return filter, nil
}

// SeccompRules say which profiles operators have put in place of the usual ones.
type SeccompRules struct {
	// Default is the path of what the runtime's default profile is, "" for the one that is
	// built in.
	Default string
	// Privileged is the path of the profile of privileged containers, "" for none.
	Privileged string
}

// chosenProfile is a profile, and the field of a request or the key of the configuration
// that chose it.
type chosenProfile struct {
	request.SeccompProfile
	by string
}

const seccompField = "config.linux.security_context.seccomp"

// chosen is a profile that a request asks for, with what the operator has put in its place.
func (e *Engine) chosen(profile request.SeccompProfile) chosenProfile {
	if path := e.rules().Seccomp.Default; profile.Default && path != "" {
		return chosenProfile{request.SeccompProfile{Path: path}, "runtime.seccomp_profile of the configuration"}
	}
	by := seccompField
	if profile.Path != "" {
		by += ".localhost_ref"
	}
	return chosenProfile{profile, by}
}

// seccompOf returns the filter of a container, nil for none. The result is shared: it is
// not to be changed.
func (e *Engine) seccompOf(ctx context.Context, config *runtimeapi.ContainerConfig) (*specs.LinuxSeccomp, error) {
	rules := e.rules()
	asked, given := request.SeccompOf(config, request.SeccompProfile{}), request.SeccompOf(config, rules.Defaults.Seccomp)
	chosen := e.chosen(given)
	if given != asked && chosen.Path == given.Path {
		chosen.by = "defaults.seccomp of the configuration, as the container asks for none"
	}
	if path := rules.Seccomp.Privileged; path != "" && isPrivileged(config) {
		chosen = chosenProfile{request.SeccompProfile{Path: path}, "runtime.privileged_seccomp_profile of the configuration"}
	}
	capabilities, err := ocispec.Capabilities(config, e.host, rules.Defaults.Capabilities)
	if err != nil {
		return nil, err
	}
	return e.filter(ctx, chosen, capabilities.Permitted)
}

// filter loads a profile for a process that has these capabilities; nil for none.
func (e *Engine) filter(ctx context.Context, chosen chosenProfile, capabilities []string) (*specs.LinuxSeccomp, error) {
	switch {
	case chosen.SeccompProfile == (request.SeccompProfile{}):
		return nil, nil //nolint:nilnil // no filter is no failure
	case !e.host.Seccomp:
		return nil, fmt.Errorf("%s: seccomp is not enabled in your kernel, cannot run with a profile: %w", chosen.by, errs.Unsupported)
	case chosen.Default:
		return e.seccomp.defaultProfile(capabilities)
	}
	data, err := probe.Ask(ctx, e.probes, "read the seccomp profile "+chosen.Path, func() ([]byte, error) {
		return sysfile.ReadRegular(chosen.Path, maxSeccompProfile)
	})
	if errors.Is(err, errs.NotFound) {
		return nil, fmt.Errorf("%s: the profile %s does not exist: %w", chosen.by, chosen.Path, errs.Invalid)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", chosen.by, err)
	}
	profile, err := e.seccomp.load(data, capabilities)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot use the profile %s: %w", chosen.by, chosen.Path, err)
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
	return e.appArmorProfile(ctx, request.AppArmorOf(config))
}

// appArmorProfile finds a profile, with the operator's in the place of the default.
func (e *Engine) appArmorProfile(ctx context.Context, asked request.AppArmorProfile) (string, error) {
	return e.appArmorHost().ProfileWith(ctx, asked, e.rules().AppArmorProfile)
}

func (e *Engine) appArmorHost() *apparmor.Host {
	if e.rules().AppArmorOff {
		return apparmor.Off()
	}
	return e.apparmor
}
