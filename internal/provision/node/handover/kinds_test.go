package handover

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// TestBerthStopsBeforeItsEngine: on the way back to another engine berth is stopped first, and on
// the way back to the same one it stays.
func TestBerthStopsBeforeItsEngine(t *testing.T) {
	host := provisiontest.New()
	write := func(file, text string) {
		t.Helper()
		if err := host.Files().Write(file, strings.NewReader(text), provision.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	write("/etc/systemd/system/"+berthUnit, "[Service]\n")
	kind := Kinds()[kindEngine]
	before, err := kind.Read(t.Context(), host, berthUnit)
	if err != nil || before.Attrs["engine"] != "native" {
		t.Fatalf("%+v, %v; want native", before, err)
	}
	if err := host.Files().Mkdir("/etc/berth", provision.Attr{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	write("/etc/berth/berth.toml", "engine = 'docker'\n")
	after, err := kind.Read(t.Context(), host, berthUnit)
	if err != nil || after.Attrs["engine"] != "docker" {
		t.Fatalf("%+v, %v; want docker", after, err)
	}
	for _, c := range []struct {
		to   provision.State
		want string
	}{{after, "active"}, {before, "inactive"}} {
		host.StartNow(berthUnit)
		if err := kind.(provision.Releaser).Release(t.Context(), host, berthUnit, c.to); err != nil {
			t.Fatal(err)
		}
		if state, err := host.Units().State(t.Context(), berthUnit); err != nil || state.Active != c.want {
			t.Errorf("back to %v berth is %s, %v; want %s", c.to.Attrs, state.Active, err, c.want)
		}
	}
}
