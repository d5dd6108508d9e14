// Package seccomp loads the seccomp filters of containers: the default profile, and profiles
// on the node.
package seccomp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	profiles "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// maxProfile bounds the size of a profile on the node, in bytes.
const maxProfile = 4 << 20

// Loader loads profiles and caches the filters. A filter depends on the capabilities of the
// process as well as on the profile. All methods are safe for concurrent use.
type Loader struct {
	host   ocispec.Host
	probes *probe.Pool

	mu      sync.Mutex
	filters map[string]*specs.LinuxSeccomp
}

// NewLoader returns a Loader of this host. probes read profiles on the node.
func NewLoader(host ocispec.Host, probes *probe.Pool) *Loader {
	return &Loader{host: host, probes: probes, filters: map[string]*specs.LinuxSeccomp{}}
}

// maxFilters bounds the cache. A node has few sets of capabilities.
const maxFilters = 64

// Default is the default profile for a process with these capabilities. It is nil where the
// kernel has no filters. The result is shared: callers must not change it.
func (l *Loader) Default(capabilities []string) (*specs.LinuxSeccomp, error) {
	if !l.host.Seccomp {
		return nil, nil //nolint:nilnil // no filter is no failure
	}
	profile, err := l.cached("built in", capabilities, func() (*specs.LinuxSeccomp, error) {
		return profiles.GetDefaultProfile(specWith(capabilities))
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make the default seccomp profile: %w", err)
	}
	return profile, nil
}

// parsed is parse with the cache.
func (l *Loader) parsed(data []byte, capabilities []string) (*specs.LinuxSeccomp, error) {
	sum := sha256.Sum256(data)
	return l.cached(string(sum[:]), capabilities, func() (*specs.LinuxSeccomp, error) { return parse(data, capabilities) })
}

func (l *Loader) cached(profile string, capabilities []string, read func() (*specs.LinuxSeccomp, error)) (*specs.LinuxSeccomp, error) {
	key := profile + " " + strings.Join(capabilities, " ")
	l.mu.Lock()
	defer l.mu.Unlock()
	if filter, ok := l.filters[key]; ok {
		return filter, nil
	}
	filter, err := read()
	if err != nil {
		return nil, err
	}
	if len(l.filters) >= maxFilters {
		clear(l.filters)
	}
	l.filters[key] = filter
	return filter, nil
}

// Rules name the profiles that the configuration puts in place of the usual ones.
type Rules struct {
	// Default is the path of the runtime's default profile, "" for the one that is built in. Key is the key of the
	// configuration that names it, "" for runtime.seccomp_profile.
	Default, Key string
	// Privileged is the path of the profile of privileged containers, "" for none.
	Privileged string
}

// chosenProfile is a profile, and the field of a request or the key of the configuration
// that chose it.
type chosenProfile struct {
	request.SeccompProfile
	by string
}

// field is the field of the profile in a request.
const field = "config.linux.security_context.seccomp"

// choose returns the profile that a request asks for, or the one that the rules put in its
// place.
func (r *Rules) choose(profile request.SeccompProfile) chosenProfile {
	if path := r.Default; profile.Default && path != "" {
		return chosenProfile{request.SeccompProfile{Path: path}, cmp.Or(r.Key, "runtime.seccomp_profile") + " of the configuration"}
	}
	by := field
	if profile.Path != "" {
		by += ".localhost_ref"
	}
	return chosenProfile{profile, by}
}

// Container returns the filter of a container, nil for none. The result is
// shared: callers must not change it. Kind Invalid or Unsupported, with the field of the request
// or the key of the configuration.
func (l *Loader) Container(ctx context.Context, config *runtimeapi.ContainerConfig, rules *Rules, defaults *ocispec.Defaults) (*specs.LinuxSeccomp, error) {
	requested, given := request.SeccompOf(config, request.SeccompProfile{}), request.SeccompOf(config, defaults.Seccomp)
	chosen := rules.choose(given)
	if given != requested && chosen.Path == given.Path {
		chosen.by = "defaults.seccomp of the configuration, as the container asks for none"
	}
	if path := rules.Privileged; path != "" && request.Security(config).GetPrivileged() {
		chosen = chosenProfile{request.SeccompProfile{Path: path}, "runtime.privileged_seccomp_profile of the configuration"}
	}
	capabilities, err := ocispec.Capabilities(config, l.host, defaults.Capabilities)
	if err != nil {
		return nil, err
	}
	return l.filter(ctx, chosen, capabilities.Permitted)
}

// CheckSandbox refuses a sandbox whose filter this host cannot enforce or load.
func (l *Loader) CheckSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, rules *Rules) error {
	_, err := l.filter(ctx, rules.choose(request.SandboxSeccompOf(config)), nil)
	return err
}

// filter loads a profile for a process that has these capabilities; nil for none.
func (l *Loader) filter(ctx context.Context, chosen chosenProfile, capabilities []string) (*specs.LinuxSeccomp, error) {
	switch {
	case chosen.SeccompProfile == (request.SeccompProfile{}):
		return nil, nil //nolint:nilnil // no filter is no failure
	case !l.host.Seccomp:
		return nil, fmt.Errorf("%s: seccomp is not enabled in your kernel, cannot run with a profile: %w", chosen.by, errs.Unsupported)
	case chosen.Default:
		return l.Default(capabilities)
	}
	data, err := probe.Ask(ctx, l.probes, "read the seccomp profile "+chosen.Path, func() ([]byte, error) {
		return sysfile.ReadRegular(chosen.Path, maxProfile)
	})
	if errors.Is(err, errs.NotFound) {
		return nil, fmt.Errorf("%s: the profile %s does not exist: %w", chosen.by, chosen.Path, errs.Invalid)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", chosen.by, err)
	}
	profile, err := l.parsed(data, capabilities)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot use the profile %s: %w", chosen.by, chosen.Path, err)
	}
	return profile, nil
}

// CheckFile returns an error when the file of a profile cannot be used. Kind NotFound when it does not exist.
func CheckFile(path string) error {
	data, err := sysfile.ReadRegular(path, maxProfile)
	if err == nil {
		_, err = parse(data, nil)
	}
	return err
}

// parse reads a profile for a process with these capabilities. Kind Invalid for data that is
// not a profile.
func parse(data []byte, capabilities []string) (*specs.LinuxSeccomp, error) {
	var rules profiles.Seccomp
	if err := json.Unmarshal(data, &rules); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	if i := slices.Index(rules.Syscalls, nil); i >= 0 { // the library would panic
		return nil, fmt.Errorf("syscalls[%d] is null: %w", i, errs.Invalid)
	}
	profile, err := profiles.LoadProfile(string(data), specWith(capabilities))
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
