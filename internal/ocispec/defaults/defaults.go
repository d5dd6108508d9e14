// Package defaults reads from the texts of a configuration what pods and containers get that
// their requests do not set. It is pure, and checks a default as package check checks the
// same value in a request.
package defaults

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// Texts are defaults as a configuration has them.
type Texts struct {
	// Seccomp is "unconfined", "runtime/default" or the path of a profile.
	Seccomp string
	// Env are NAME=VALUE, Sysctls NAME=VALUE, Ulimits NAME=SOFT[:HARD].
	Env, Sysctls, Ulimits []string
	// Capabilities are names of capabilities or ALL.
	Capabilities []string
	// Devices are HOST[:CONTAINER[:rwm]].
	Devices []string
}

// Defaults are what Texts mean.
type Defaults struct {
	Container ocispec.Defaults
	// Sysctls are those of pods, by name.
	Sysctls map[string]string
	// Devices are what every container gets.
	Devices []*runtimeapi.Device
}

// Parse reads texts. It calls fault for each one that is wrong, with the name of its
// field in lower case; that one is left out.
func Parse(texts Texts, fault func(key string, err error)) *Defaults {
	d := &Defaults{}
	var err error
	if d.Container.Seccomp, err = seccomp(texts.Seccomp); err != nil {
		fault("seccomp", err)
	}
	if d.Container.Env, err = env(texts.Env); err != nil {
		fault("env", err)
	}
	if d.Container.Capabilities, err = capabilities(texts.Capabilities); err != nil {
		fault("capabilities", err)
	}
	if d.Container.Rlimits, err = ulimits(texts.Ulimits); err != nil {
		fault("ulimits", err)
	}
	if d.Sysctls, err = sysctls(texts.Sysctls); err != nil {
		fault("sysctls", err)
	}
	if d.Devices, err = devices(texts.Devices); err != nil {
		fault("devices", err)
	}
	return d
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errs.Invalid)
}

func seccomp(text string) (request.SeccompProfile, error) {
	switch {
	case text == "" || text == "unconfined":
		return request.SeccompProfile{}, nil
	case text == "runtime/default":
		return request.SeccompProfile{Default: true}, nil
	case path.IsAbs(text):
		return request.SeccompProfile{Path: text}, nil
	}
	return request.SeccompProfile{}, invalid("%q: want unconfined, runtime/default or the absolute path of a profile", text)
}

// asked judges a container's request that asks for nothing but what change adds.
func asked(change func(*runtimeapi.ContainerConfig)) error {
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "default"}, Image: &runtimeapi.ImageSpec{Image: "default"},
	}
	change(config)
	return check.Container(config, nil)
}

func env(entries []string) ([]string, error) {
	for _, entry := range entries {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			return nil, invalid("an entry has no equals sign: want NAME=VALUE")
		}
		if name == "" || request.HasControl(name) {
			return nil, invalid("%q is not the name of a variable", name)
		}
		if strings.ContainsRune(value, 0) {
			return nil, invalid("the value of %s contains a NUL", name) // it may be a secret
		}
	}
	return entries, nil
}

// capabilities is never nil: none at all are none.
func capabilities(names []string) ([]string, error) {
	names, err := request.KernelCapabilities("names", names)
	if err != nil {
		return nil, err
	}
	if slices.Contains(names, "ALL") {
		return request.AllCapabilities(), nil
	}
	return names, nil
}

func sysctls(entries []string) (map[string]string, error) {
	all := map[string]string{}
	for _, entry := range entries {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			return nil, invalid("%q: want NAME=VALUE", entry)
		}
		all[name] = value
	}
	err := check.Sandbox(&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "default"}, Linux: &runtimeapi.LinuxPodSandboxConfig{Sysctls: all},
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func devices(entries []string) ([]*runtimeapi.Device, error) {
	var all []*runtimeapi.Device
	for _, entry := range entries {
		parts := strings.Split(entry, ":")
		if len(parts) > 3 {
			return nil, invalid("%q: want HOST[:CONTAINER[:PERMISSIONS]]", entry)
		}
		d := &runtimeapi.Device{HostPath: parts[0], ContainerPath: parts[0], Permissions: "rwm"}
		if len(parts) > 1 {
			d.ContainerPath = parts[1]
		}
		if len(parts) > 2 {
			d.Permissions = parts[2]
		}
		if err := asked(func(c *runtimeapi.ContainerConfig) { c.Devices = []*runtimeapi.Device{d} }); err != nil {
			return nil, fmt.Errorf("%q: %w", entry, err)
		}
		all = append(all, d)
	}
	return all, nil
}

// ulimitNames are the kernel's limits of a process.
func ulimitNames() []string {
	return []string{
		"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss",
		"rtprio", "rttime", "sigpending", "stack",
	}
}

func ulimits(entries []string) ([]specs.POSIXRlimit, error) {
	var all []specs.POSIXRlimit
	for _, entry := range entries {
		name, limits, _ := strings.Cut(entry, "=")
		softText, hardText, both := strings.Cut(limits, ":")
		if !both {
			hardText = softText
		}
		soft, softErr := ulimit(softText)
		hard, hardErr := ulimit(hardText)
		kind := "RLIMIT_" + strings.ToUpper(name)
		switch {
		case !slices.Contains(ulimitNames(), name):
			return nil, invalid("%q: want one of %s before the =", entry, strings.Join(ulimitNames(), ", "))
		case softErr != nil || hardErr != nil:
			return nil, invalid("%q: want NAME=SOFT:HARD or NAME=BOTH, each a number or unlimited", entry)
		case soft > hard:
			return nil, invalid("%q: the soft limit is above the hard one", entry)
		case slices.ContainsFunc(all, func(l specs.POSIXRlimit) bool { return l.Type == kind }):
			return nil, invalid("%q: a second limit of that name", entry)
		}
		all = append(all, specs.POSIXRlimit{Type: kind, Soft: soft, Hard: hard})
	}
	return all, nil
}

func ulimit(text string) (uint64, error) {
	if text == "unlimited" || text == "-1" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(text, 10, 64)
}
