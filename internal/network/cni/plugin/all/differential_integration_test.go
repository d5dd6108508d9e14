//go:build integration && e2e

package all_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/network/cni"
	"github.com/berthrun/berth/internal/network/cni/plugin/all"
)

// compare plays the same in a world of the reference and in one of berth's plugins.
func compare(t *testing.T, bin string, a attachment) {
	t.Helper()
	compareWorlds(t, newWorld(t, bin, false), newWorld(t, bin, true), a)
}

func compareWorlds(t *testing.T, reference, berth *world, a attachment) {
	t.Helper()
	played := [2][]step{reference.play(t.Context(), a), berth.play(t.Context(), a)}
	if len(played[0]) != len(played[1]) {
		t.Errorf("%d steps of the reference, %d of berth", len(played[0]), len(played[1]))
		return
	}
	for i, want := range played[0] {
		got := played[1][i]
		if diff := cmp.Diff(want.outcome, got.outcome); diff != "" || want.what != got.what {
			t.Errorf("%s (-reference +berth):\n%s", want.what, diff)
		}
	}
	if t.Failed() {
		t.Logf("configuration %s, arguments %v, capabilities %v", a.conf, a.args, a.caps)
	}
	if testing.Verbose() {
		t.Logf("ADD: %s", played[1][0].outcome)
	}
}

// TestDifferential compares the plugins with the reference's, one option after the other.
func TestDifferential(t *testing.T) {
	bin := referencePlugins(t, "v1.9.1")
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) { compare(t, bin, c.attachment) })
	}
}

// TestDifferentialRandom compares generated configurations.
func TestDifferentialRandom(t *testing.T) {
	bin := referencePlugins(t, "v1.9.1")
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BERTH_DIFF_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	count := 200
	if text := os.Getenv("BERTH_DIFF_COUNT"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("BERTH_DIFF_SEED=%d BERTH_DIFF_COUNT=%d", seed, count)
	for i := range count {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		t.Run(fmt.Sprint(i), func(t *testing.T) { compare(t, bin, generate(r)) })
	}
}

// TestProgram compares berth-cni, the plugins as a program, with the reference's.
func TestProgram(t *testing.T) {
	bin := referencePlugins(t, "v1.9.1")
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "berth-cni"), "github.com/berthrun/berth/cmd/berth-cni").CombinedOutput(); err != nil {
		t.Fatalf("cannot build berth-cni: %v\n%s", err, out)
	}
	for _, p := range all.Plugins() {
		if err := os.Symlink("berth-cni", filepath.Join(dir, p.Type)); err != nil {
			t.Fatal(err)
		}
	}
	for _, conf := range []string{
		list("1.1.0", with("bridge", `"isDefaultGateway":true,"ipMasq":true`, hostLocal(rangesBoth)), with("portmap", `"capabilities":{"portMappings":true}`),
			with("bandwidth", `"ingressRate":1000000,"ingressBurst":80000`), with("tuning", `"dataDir":"%DIR%/tuning","mtu":1300`), with("firewall", `"backend":"iptables"`), with("loopback")),
		list("1.0.0", with("ptp", hostLocal(ranges4))), list("1.0.0", with("ptp", `"mtu":"x"`)), list("0.2.0", with("bandwidth")),
	} {
		a := attachment{conf: conf, caps: map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}}
		compareWorlds(t, newWorld(t, bin, false), newWorld(t, dir, false), a)
	}
}

// TestReferenceProgramsRunInProcess: the network runs the plugins of a covered release in process, and other
// programs of the same names not.
func TestReferenceProgramsRunInProcess(t *testing.T) {
	bin, dir := referencePlugins(t, "v1.9.1"), t.TempDir()
	conf := list("1.0.0", with("bridge", hostLocal(ranges4)), with("bandwidth"), with("firewall", `"backend":"firewalld"`))
	if err := os.WriteFile(filepath.Join(dir, "10.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := cni.New(t.Context(), cni.Config{ConfDir: dir, BinDirs: []string{bin}, RootDir: filepath.Join(dir, "root"), MaxNetworks: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	networks, err := n.Networks(t.Context())
	if err != nil || len(networks) != 1 {
		t.Fatalf("%+v, %v", networks, err)
	}
	for _, p := range networks[0].Plugins {
		why := "its program is " + reference + "@v1.9.1"
		if p.Type == "firewall" {
			why = `berth's own has no backend "firewalld"`
		}
		if p.Fault != nil || p.InProcess == (p.Type == "firewall") || p.Why != why {
			t.Errorf("%+v, want %q", p, why)
		}
	}
}
