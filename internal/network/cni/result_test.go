package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

func TestPreference(t *testing.T) {
	for preference, want := range map[Preference]string{
		IPv4First: "[10.0.0.2 10.0.0.3 fd00::2]", IPv6First: "[fd00::2 10.0.0.2 10.0.0.3]", AsInResult: "[10.0.0.2 fd00::2 10.0.0.3]",
	} {
		var answer types100.Result
		if err := json.Unmarshal([]byte(`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"},{"address":"fd00::2/64"},{"address":"10.0.0.3/24"}]}`), &answer); err != nil {
			t.Fatal(err)
		}
		got, err := readResult([]types.Result{&answer}, preference)
		if err != nil || fmt.Sprint(got.IPs) != want {
			t.Errorf("%s: %v, %v, want %s", preference, got, err, want)
		}
	}
}

func TestUnknownPreferenceIsAWarning(t *testing.T) {
	var log bytes.Buffer
	n, err := New(t.Context(), Config{ConfDir: t.TempDir(), RootDir: t.TempDir(), Preference: "ipv5", Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if n.cfg.Preference != IPv4First || !strings.Contains(log.String(), "ipv5") {
		t.Errorf("preference %q, log %s", n.cfg.Preference, log.String())
	}
}
