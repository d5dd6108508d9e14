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
	"time"

	"github.com/moby/profiles/apparmor"
	"golang.org/x/sync/singleflight"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// The files by which the kernel reports AppArmor.
const (
	enabledFile  = "/sys/module/apparmor/parameters/enabled"
	profilesFile = "/sys/kernel/security/apparmor/profiles"
	parser       = "apparmor_parser"
)

const field = "config.linux.security_context.apparmor"

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
	// patience is how long the parser may take.
	patience time.Duration
	// loading lets concurrent callers share one run of the parser, also one that
	// hangs.
	loading singleflight.Group
}

// parserTimeout is far more than a parser takes on an idle machine.
const parserTimeout = 30 * time.Second

// Find looks at the host. defaultName is the name of berth's own profile, which is
// loaded when the first container needs it.
func Find(defaultName string) *Host {
	h := &Host{defaultName: defaultName, profiles: profilesFile, load: apparmor.InstallDefault, patience: parserTimeout}
	h.why = disabled(enabledFile, profilesFile)
	if _, err := exec.LookPath(parser); err != nil {
		h.noLoader = err
	}
	return h
}

// Off is a host on which the configuration has turned AppArmor off.
func Off() *Host { return &Host{why: "it is turned off in the configuration"} }

// disabled returns why the kernel does not enforce profiles, "" when it does.
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

// Warning is a message for people about this host, "" for none.
func (h *Host) Warning() string {
	if h.why != "" || h.noLoader == nil {
		return ""
	}
	return "AppArmor is enabled, but " + parser + " is not installed: containers that ask for no profile run without one"
}

// Profile loads and returns the profile of a container, "" for none. A host that cannot load
// the default profile has none, unless the request demands it. Kind Unsupported for a demand
// that this host cannot meet, Invalid for a profile that is not loaded.
func (h *Host) Profile(ctx context.Context, requested request.AppArmorProfile) (string, error) {
	switch {
	case requested.None():
		return "", nil
	case h.why != "" && requested.Demanded:
		return "", fmt.Errorf("%s: apparmor is not supported on this host: %s: %w", field, h.why, errs.Unsupported)
	case h.why != "":
		return "", nil
	case requested.Default:
		return h.defaultProfile(ctx, requested.Demanded)
	}
	loaded, err := h.loaded(requested.Name)
	if err == nil && !loaded {
		err = fmt.Errorf("%s: apparmor profile not found: %q is not loaded: %w", field, requested.Name, errs.Invalid)
	}
	if err != nil {
		return "", err
	}
	return requested.Name, nil
}

// ProfileWith is Profile with an operator's profile in the place of the default one, ""
// for none. It must be loaded.
func (h *Host) ProfileWith(ctx context.Context, requested request.AppArmorProfile, operators string) (string, error) {
	if !requested.Default || operators == "" {
		return h.Profile(ctx, requested)
	}
	profile, err := h.Profile(ctx, request.AppArmorProfile{Name: operators, Demanded: requested.Demanded})
	if err != nil {
		return "", fmt.Errorf("runtime.apparmor_profile of the configuration: %w", err)
	}
	return profile, nil
}

// defaultProfile loads berth's own profile unless it is loaded: another process may have
// unloaded it since the last time.
func (h *Host) defaultProfile(ctx context.Context, demanded bool) (string, error) {
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
	if err := h.loadDefault(ctx); err != nil {
		return "", fmt.Errorf("cannot load the AppArmor profile %s: %w", h.defaultName, err)
	}
	return h.defaultName, nil
}

// loadDefault waits for the parser in bounded time. Kind Unavailable for one that
// hangs. The parser continues, since its effect is unknown, and later callers wait for
// the same run.
func (h *Host) loadDefault(ctx context.Context) error {
	ended := h.loading.DoChan(h.defaultName, func() (any, error) {
		return nil, errs.Guard("load of the AppArmor profile "+h.defaultName, func() error {
			if loaded, err := h.loaded(h.defaultName); loaded || err != nil {
				return err // by the run that ended just before
			}
			return h.load(h.defaultName)
		})
	})
	late := time.NewTimer(h.patience)
	defer late.Stop()
	select {
	case result := <-ended:
		return result.Err
	case <-ctx.Done():
		return fmt.Errorf("%s has not ended: %w", parser, ctx.Err())
	case <-late.C:
		return fmt.Errorf("%s has not ended for %s (look what it waits for, or end it: the next container runs it again): %w", parser, h.patience, errs.Unavailable)
	}
}

// loaded reports whether the kernel has a profile. A name may have blanks and
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
