package apparmor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// fakeHost is a host whose securityfs is a directory. The load of a profile appends it to the list,
// as the kernel does.
func fakeHost(t *testing.T, profiles string) (h *Host, loads *int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "profiles")
	if err := os.WriteFile(file, []byte(profiles), 0o600); err != nil {
		t.Fatal(err)
	}
	loads = new(int)
	return &Host{defaultName: "berth-test", profiles: file, patience: time.Minute, load: func(name string) error {
		*loads++
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return os.WriteFile(file, []byte(string(data)+name+" (enforce)\n"), 0o600)
	}}, loads
}

const loadedProfiles = "/usr/bin/man (enforce)\nMongoDB Compass (unconfined)\nodd (name) (complain)\nberth (enforce)\n"

func TestProfile(t *testing.T) {
	for name, c := range map[string]struct {
		asked request.AppArmorProfile
		want  string
		kind  error
	}{
		"none":                        {request.AppArmorProfile{}, "", nil},
		"default":                     {request.AppArmorProfile{Default: true}, "berth-test", nil},
		"default, demanded":           {request.AppArmorProfile{Default: true, Demanded: true}, "berth-test", nil},
		"one that is loaded":          {request.AppArmorProfile{Name: "/usr/bin/man", Demanded: true}, "/usr/bin/man", nil},
		"one with a blank":            {request.AppArmorProfile{Name: "MongoDB Compass", Demanded: true}, "MongoDB Compass", nil},
		"one with parentheses":        {request.AppArmorProfile{Name: "odd (name)", Demanded: true}, "odd (name)", nil},
		"the beginning of a name":     {request.AppArmorProfile{Name: "MongoDB", Demanded: true}, "", errs.Invalid},
		"a name with its mode":        {request.AppArmorProfile{Name: "berth (enforce)", Demanded: true}, "", errs.Invalid},
		"one that nobody has loaded":  {request.AppArmorProfile{Name: "gone", Demanded: true}, "", errs.Invalid},
		"one that is named as nobody": {request.AppArmorProfile{Name: "\n", Demanded: true}, "", errs.Invalid},
	} {
		h, _ := fakeHost(t, loadedProfiles)
		got, err := h.Profile(t.Context(), c.asked)
		if got != c.want || !errors.Is(err, c.kind) || c.kind == nil && err != nil {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, c.want, c.kind)
		}
	}
}

// On a host that enforces profiles, an operator's profile must be loaded.
func TestProfileOfTheOperator(t *testing.T) {
	for name, c := range map[string]struct {
		host  *Host // nil for one with profiles
		own   string
		asked request.AppArmorProfile
		want  string
		kind  error
	}{
		"loaded":             {nil, "berth", request.AppArmorProfile{Default: true}, "berth", nil},
		"loaded, demanded":   {nil, "berth", request.AppArmorProfile{Default: true, Demanded: true}, "berth", nil},
		"not loaded":         {nil, "gone", request.AppArmorProfile{Default: true}, "", errs.Invalid},
		"another one":        {nil, "gone", request.AppArmorProfile{Name: "berth", Demanded: true}, "berth", nil},
		"unconfined":         {nil, "gone", request.AppArmorProfile{}, "", nil},
		"none of his":        {nil, "", request.AppArmorProfile{Default: true}, "berth-test", nil},
		"no AppArmor":        {Off(), "berth", request.AppArmorProfile{Default: true}, "", nil},
		"none, but demanded": {Off(), "berth", request.AppArmorProfile{Default: true, Demanded: true}, "", errs.Unsupported},
	} {
		if c.host == nil {
			c.host, _ = fakeHost(t, loadedProfiles)
		}
		got, err := c.host.ProfileWith(t.Context(), c.asked, c.own)
		if got != c.want || !errors.Is(err, c.kind) || c.kind == nil && err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "runtime.apparmor_profile") {
			t.Errorf("%s: %v does not name the key", name, err)
		}
	}
}

// The default profile is loaded once, and again after it was unloaded.
func TestDefaultProfileIsLoadedWhereItIsMissing(t *testing.T) {
	h, loads := fakeHost(t, "")
	ask := func() {
		t.Helper()
		if got, err := h.Profile(t.Context(), request.AppArmorProfile{Default: true}); got != "berth-test" || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
	ask()
	ask()
	if *loads != 1 {
		t.Errorf("loaded %d times", *loads)
	}
	if err := os.WriteFile(h.profiles, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ask()
	if *loads != 2 {
		t.Errorf("loaded %d times", *loads)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := os.WriteFile(h.profiles, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Profile(ended, request.AppArmorProfile{Default: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled load: %v", err)
	}
}

// If the parser hangs, each request that waits for it gets an error. Only one parser runs. Requests
// that need no profile loaded do not wait.
func TestParserThatHangs(t *testing.T) {
	h, _ := fakeHost(t, "p (enforce)\n")
	loads, hang, loaded := atomic.Int64{}, make(chan struct{}), make(chan struct{})
	load := h.load
	h.load = func(name string) error {
		loads.Add(1)
		<-hang
		defer close(loaded)
		return load(name)
	}
	byDefault := request.AppArmorProfile{Default: true}
	h.patience = time.Millisecond
	for range 3 {
		_, err := h.Profile(t.Context(), byDefault)
		if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "apparmor_parser") {
			t.Errorf("%v, want Unavailable and the parser's name", err)
		}
	}
	h.patience = time.Minute
	ended, end := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := h.Profile(ended, byDefault)
		gaveUp <- err
	}()
	if got, err := h.Profile(t.Context(), request.AppArmorProfile{Name: "p", Demanded: true}); got != "p" || err != nil {
		t.Errorf("one that is loaded: %q, %v", got, err)
	}
	end()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up: %v", err)
	}
	if n := loads.Load(); n != 1 {
		t.Errorf("the parser was run %d times while the first one hung", n)
	}
	close(hang)
	<-loaded
	if got, err := h.Profile(t.Context(), byDefault); got != "berth-test" || err != nil {
		t.Errorf("after it went on: %q, %v", got, err)
	}
}

// TestPanicOfALoadIsItsError: a panic fails the start of one container, and does not end the
// daemon.
func TestPanicOfALoadIsItsError(t *testing.T) {
	h, _ := fakeHost(t, "p (enforce)\n")
	h.load = func(string) error { panic("oh no") }
	for range 2 {
		_, err := h.Profile(t.Context(), request.AppArmorProfile{Default: true})
		if err == nil || !strings.Contains(err.Error(), "load of the AppArmor profile") || errs.Kind(err) != nil {
			t.Errorf("a load that panicked: %v", err)
		}
	}
}

func TestHostsThatCannot(t *testing.T) {
	h, _ := fakeHost(t, "p (enforce)\n")
	h.why = "the kernel has no AppArmor"
	for _, asked := range []request.AppArmorProfile{{Name: "p", Demanded: true}, {Default: true, Demanded: true}} {
		if got, err := h.Profile(t.Context(), asked); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), h.why) {
			t.Errorf("%+v without AppArmor: %q, %v", asked, got, err)
		}
	}
	if got, err := h.Profile(t.Context(), request.AppArmorProfile{Default: true}); got != "" || err != nil {
		t.Errorf("nothing demanded, without AppArmor: %q, %v", got, err)
	}
	h, _ = fakeHost(t, "p (enforce)\n")
	h.noLoader = errors.New("no apparmor_parser")
	if h.Warning() == "" {
		t.Error("no warning without a parser")
	}
	if got, err := h.Profile(t.Context(), request.AppArmorProfile{Default: true}); got != "" || err != nil {
		t.Errorf("nothing demanded, without a parser: %q, %v", got, err)
	}
	if _, err := h.Profile(t.Context(), request.AppArmorProfile{Default: true, Demanded: true}); !errors.Is(err, errs.Unsupported) {
		t.Errorf("demanded, without a parser: %v", err)
	}
	if got, err := h.Profile(t.Context(), request.AppArmorProfile{Name: "p", Demanded: true}); got != "p" || err != nil {
		t.Errorf("a loaded one needs no parser: %q, %v", got, err)
	}
}

func TestDisabled(t *testing.T) {
	dir := t.TempDir()
	enabled, profiles := filepath.Join(dir, "enabled"), filepath.Join(dir, "profiles")
	if why := disabled(enabled, profiles); !strings.Contains(why, "no AppArmor") {
		t.Errorf("no module: %q", why)
	}
	for content, want := range map[string]string{"N\n": "not enabled", "": "not enabled", "Y\n": "cannot be listed"} {
		if err := os.WriteFile(enabled, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if why := disabled(enabled, profiles); !strings.Contains(why, want) {
			t.Errorf("%q: %q, want %q", content, why, want)
		}
	}
	if err := os.WriteFile(profiles, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(enabled, []byte("Y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if why := disabled(enabled, profiles); why != "" {
		t.Errorf("enabled: %q", why)
	}
}

// If AppArmor is turned off, a request without a profile gets none, and a request for a profile is
// refused.
func TestOff(t *testing.T) {
	if got, err := Off().Profile(t.Context(), request.AppArmorProfile{Default: true}); got != "" || err != nil {
		t.Errorf("nothing asked for: %q, %v", got, err)
	}
	_, err := Off().Profile(t.Context(), request.AppArmorProfile{Default: true, Demanded: true})
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "turned off in the configuration") {
		t.Errorf("a demand: %v", err)
	}
}
