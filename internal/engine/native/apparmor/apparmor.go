// Package apparmor finds the AppArmor profile of a container on this host, and loads
// berth's own where it is missing.
package apparmor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/moby/profiles/apparmor"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
)

// Where the kernel tells of AppArmor.
const (
	enabledFile  = "/sys/module/apparmor/parameters/enabled"
	profilesFile = "/sys/kernel/security/apparmor/profiles"
	parser       = "apparmor_parser"
)

const field = "linux.security_context.apparmor"

// Host is AppArmor on one host.
type Host struct {
	// why is why profiles cannot be enforced, "" when they can.
	why string
	// defaultName is the name of berth's own profile.
	defaultName string
	// profiles lists what is loaded, "name (mode)" on each line.
	profiles string
	// load loads berth's own profile; noLoader is why that is impossible.
	load     func(name string) error
	noLoader error

	mu sync.Mutex // held while a profile is loaded
}

// Find looks at the host. defaultName is the name of berth's own profile, which is
// loaded when the first container needs it.
func Find(defaultName string) *Host {
	h := &Host{defaultName: defaultName, profiles: profilesFile, load: apparmor.InstallDefault}
	h.why = disabled(enabledFile, profilesFile)
	if _, err := exec.LookPath(parser); err != nil {
		h.noLoader = err
	}
	return h
}

// disabled tells why the kernel does not enforce profiles, "" when it does.
func disabled(enabled, profiles string) string {
	data, err := os.ReadFile(enabled)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "the kernel has no AppArmor"
	case err != nil:
		return err.Error()
	case !strings.HasPrefix(string(data), "Y"):
		return "AppArmor is not enabled in the kernel"
	}
	if _, err := os.Stat(profiles); err != nil {
		return fmt.Sprintf("AppArmor is enabled, but its profiles cannot be listed: %v", err)
	}
	return ""
}

// Warning is what people should know of this host, "" for nothing.
func (h *Host) Warning() string {
	if h.why != "" || h.noLoader == nil {
		return ""
	}
	return "AppArmor is enabled, but " + parser + " is not installed: containers that ask for no profile run without one"
}

// Profile returns the profile that a container runs under, "" for none; it is loaded
// then. Without a demand, a host that cannot have the default profile has none. Kind
// Unsupported for a demand that this host cannot meet, Invalid for a profile that is
// not loaded.
func (h *Host) Profile(ctx context.Context, asked ocispec.AppArmorProfile) (string, error) {
	switch {
	case asked.None():
		return "", nil
	case h.why != "" && asked.Demanded:
		return "", fmt.Errorf("%s: apparmor is not supported on this host: %s: %w", field, h.why, errs.Unsupported)
	case h.why != "":
		return "", nil
	case asked.Default:
		return h.defaultProfile(ctx, asked.Demanded)
	}
	loaded, err := h.loaded(asked.Name)
	if err == nil && !loaded {
		err = fmt.Errorf("%s: apparmor profile not found: %q is not loaded: %w", field, asked.Name, errs.Invalid)
	}
	if err != nil {
		return "", err
	}
	return asked.Name, nil
}

// defaultProfile loads berth's own profile unless it is loaded: somebody may have
// unloaded it since the last time.
func (h *Host) defaultProfile(ctx context.Context, demanded bool) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	loaded, err := h.loaded(h.defaultName)
	if err != nil {
		return "", err
	}
	if loaded {
		return h.defaultName, nil
	}
	if h.noLoader != nil {
		if !demanded {
			return "", nil
		}
		return "", fmt.Errorf("%s: the default profile cannot be loaded: %w: %w", field, h.noLoader, errs.Unsupported)
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := h.load(h.defaultName); err != nil {
		return "", fmt.Errorf("cannot load the AppArmor profile %s: %w", h.defaultName, err)
	}
	return h.defaultName, nil
}

// loaded tells whether the kernel has a profile. A name may have blanks and
// parentheses in it; the mode stands at the line's end.
func (h *Host) loaded(name string) (bool, error) {
	data, err := os.ReadFile(h.profiles)
	if err != nil {
		return false, fmt.Errorf("cannot list the AppArmor profiles: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		if i := strings.LastIndex(line, " ("); i >= 0 && line[:i] == name {
			return true, nil
		}
	}
	return false, nil
}
