package cniconf_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/cniconf"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

func TestFirst(t *testing.T) {
	for _, c := range []struct {
		name, file, content string
		plugins, missing    []string
		kind                error
	}{
		{"a list", "10-x.conflist", `{"plugins":[{"type":"ptp","ipam":{"type":"host-local"}},{"type":"portmap"}]}`, []string{"ptp", "host-local", "portmap"}, []string{"host-local", "portmap"}, nil},
		{"one plugin", "10-x.conf", `{"type":"ptp"}`, []string{"ptp"}, nil, nil},
		{"no configuration", "README", "x", nil, nil, nil},
		{"no JSON", "10-x.conflist", "{", nil, nil, errs.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := provisiontest.New()
			for _, dir := range []string{"/etc/net", "/bin"} {
				if err := h.Files().Mkdir(dir, provision.Attr{Mode: 0o755}); err != nil {
					t.Fatal(err)
				}
			}
			for name, content := range map[string]string{"/etc/net/" + c.file: c.content, "/etc/net/20-y.conf": `{"type":"other"}`, "/bin/ptp": ""} {
				if c.file == "README" && strings.HasPrefix(name, "/etc/net/20") {
					continue
				}
				if err := h.Files().Write(name, strings.NewReader(content), provision.Attr{Mode: 0o644}); err != nil {
					t.Fatal(err)
				}
			}
			config, err := cniconf.First(h.Files(), "/etc/net")
			if !errors.Is(err, c.kind) || err != nil && !strings.Contains(err.Error(), "/etc/net/"+c.file) {
				t.Errorf("error %v, want %v", err, c.kind)
			}
			if !slices.Equal(config.Plugins, c.plugins) {
				t.Errorf("plugins %q, want %q", config.Plugins, c.plugins)
			}
			if missing := config.Missing(h.Files(), []string{"/opt", "/bin"}); !slices.Equal(missing, c.missing) {
				t.Errorf("missing %q, want %q", missing, c.missing)
			}
		})
	}
	if config, err := cniconf.First(provisiontest.New().Files(), "/etc/net"); err != nil || config.File != "" {
		t.Errorf("no directory: %+v, %v", config, err)
	}
}
