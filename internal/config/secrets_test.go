package config

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

func TestSecretsAreNotShown(t *testing.T) {
	cfg := DefaultDaemon()
	cfg.Default.Env = []string{"TOKEN=hunter2", "EMPTY="}
	shown := Sample(WithoutSecrets(cfg))
	if strings.Contains(shown, "hunter2") || !strings.Contains(shown, "TOKEN="+Hidden) || cfg.Default.Env[0] != "TOKEN=hunter2" {
		t.Errorf("shown is %s, and kept %q", shown, cfg.Default.Env)
	}
	// Such a file would set a wrong value in containers.
	if _, err := LoadDaemon(write(t, shown), nil); err == nil || !strings.Contains(err.Error(), "defaults.env: TOKEN: ") {
		t.Errorf("a configuration without its secrets is read: %v", err)
	}
	for _, text := range []string{`["hunter2"]`, `["TOKEN=hunter2\u0000"]`, `"TOKEN=hunter2"`, `{TOKEN = "hunter2"}`} {
		_, err := LoadDaemon(write(t, "[defaults]\nenv = "+text+"\n"), nil)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the fault of %q: %v", text, err)
		}
	}
}

// A configuration that a daemon shows in its verbose status is read back as it is. Keys that it does not have are defaults.
func TestShownConfigurationIsReadBack(t *testing.T) {
	yes := true
	cfg := DefaultDaemon()
	cfg.Root, cfg.Network.BinDirs, cfg.Default.Env = "/a", nil, []string{"TOKEN=" + Hidden}
	cfg.Jobs.StageTimeout *= 2
	cfg.Handlers = map[string]Handler{"x.y": {Kind: "oci", Path: "/runc", PrivilegedNoDevices: &yes}}
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadShown(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cfg, again); diff != "" {
		t.Error(diff)
	}
	older, err := ReadShown(`{"Root":"/b"}`)
	if want := DefaultDaemon().State; err != nil || older.Root != "/b" || older.State != want {
		t.Errorf("%+v %v", older, err)
	}
	for _, wrong := range []string{"", "OK", "{}", "[]", "null", `{"Root":5}`} {
		if _, err := ReadShown(wrong); !errors.Is(err, errs.Unsupported) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
