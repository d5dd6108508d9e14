package config

import (
	"strings"
	"testing"
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
	for _, text := range []string{"hunter2", "TOKEN=hunter2\u0000"} {
		_, err := LoadDaemon(write(t, "[defaults]\nenv = [\""+text+"\"]\n"), nil)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the fault of %q: %v", text, err)
		}
	}
}
