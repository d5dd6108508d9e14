//go:build integration

package machine

import (
	"context"
	"os"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// TestRestartReadsChangedFiles: a unit restarts with a drop-in that it got since systemd read its files.
func TestRestartReadsChangedFiles(t *testing.T) {
	require.Root(t)
	require.Systemd(t)
	const name, dir = "berth-test-reread.service", "/run/systemd/system/"
	units := &systemd{}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		defer units.close()
		for _, err := range []error{
			units.Stop(context.Background(), name), os.Remove(dir + name), os.RemoveAll(dir + name + ".d"), units.Reload(context.Background()),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	must(os.WriteFile(dir+name, []byte("[Unit]\nDescription=old\n[Service]\nExecStart=/bin/sleep infinity\n"), 0o644))
	must(units.Reload(t.Context()))
	must(units.Start(t.Context(), name))
	must(os.Mkdir(dir+name+".d", 0o755))
	must(os.WriteFile(dir+name+".d/10-new.conf", []byte("[Unit]\nDescription=new\n"), 0o644))
	must(units.Restart(t.Context(), name))
	conn, err := units.connect(t.Context())
	must(err)
	props, err := conn.GetUnitPropertiesContext(t.Context(), name)
	must(err)
	if got := text(props["Description"]); got != "new" {
		t.Errorf("the unit that runs is the %s one", got)
	}
}
