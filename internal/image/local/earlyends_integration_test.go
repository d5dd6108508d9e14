//go:build integration

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/encrypt"
)

// wantSent checks that a layer was sent once, over all attempts and registries.
func wantSent(t *testing.T, layer imagetest.Blob, registries ...*held) {
	t.Helper()
	var sent int64
	for _, h := range registries {
		sent += h.sent(layer.Digest)
	}
	if sent != layer.Size {
		t.Errorf("%d bytes were sent, want %d", sent, layer.Size)
	}
}

// pullRest pulls an image whose large layer was begun before. A helper unpacks the layer, and the registry sends each byte of it
// once in all.
func pullRest(t *testing.T, h *held, s *Images, cfg Config, layer imagetest.Blob) {
	t.Helper()
	ended := h.pull(t.Context(), s, "app")
	awaitPull(t, ended, "the next pull unpacks the layer", func() bool { return len(helpers(t, cfg)) > 0 })
	h.send()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	wantSent(t, layer, h)
}

// TestACancelledPullEndsTheHelper: it leaves nothing but the beginning of the blob, and the next pull continues.
func TestACancelledPullEndsTheHelper(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	img := h.push(t, "app", "", earlyLayer("a"))
	s := open(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	first := h.pull(ctx, s, "app")
	awaitEarly(t, cfg, first, "a")
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the pull that is cancelled: %v", err)
	}
	if pids := helpers(t, cfg); len(pids) > 0 {
		t.Errorf("helpers run after the end of the pull: %v", pids)
	}
	pullRest(t, h, s, cfg, img.Layers[0])
	wantNothing(t, s, h.host+"/app:1")
}

// TestOneOfTwoCallersLeaves: the other one gets the layer that the helper has begun.
func TestOneOfTwoCallersLeaves(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	img := h.push(t, "app", "", earlyLayer("a"))
	s := open(t, cfg)
	ctx, leave := context.WithCancel(t.Context())
	first := h.pull(ctx, s, "app")
	early := awaitEarly(t, cfg, first, "a")
	joined := make(chan struct{})
	second := make(chan error, 1)
	go func() {
		var once bool
		_, err := s.Pull(t.Context(), h.host+"/app:1", image.Auth{}, func(image.Progress) {
			if !once {
				once = true
				close(joined)
			}
		})
		second <- err
	}()
	<-joined
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that leaves: %v", err)
	}
	h.send()
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	wantFile(t, cfg, early, "a")
	wantSent(t, img.Layers[0], h)
	wantNothing(t, s, h.host+"/app:1")
}

// TestTwoPullsShareALayer: the one that waits for the download of the other one has the layer, too.
func TestTwoPullsShareALayer(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	one := h.push(t, "one", "", earlyLayer("a"))
	h.push(t, "two", "", earlyLayer("a"), imagetest.Layer{{Path: "top"}})
	s := open(t, cfg)
	first := h.pull(t.Context(), s, "one")
	early := awaitEarly(t, cfg, first, "a")
	second := h.pull(t.Context(), s, "two")
	h.send()
	if err := errors.Join(<-first, <-second); err != nil {
		t.Fatal(err)
	}
	wantFile(t, cfg, early, "a")
	wantSent(t, one.Layers[0], h)
	if err := s.Remove(t.Context(), h.host+"/one:1"); err != nil {
		t.Error(err)
	}
	wantNothing(t, s, h.host+"/two:1")
}

// TestAnImportDoesNotWaitForADownload: it has the same layer as a pull that is held, which takes the layer of the import.
func TestAnImportDoesNotWaitForADownload(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	img := h.push(t, "app", "", earlyLayer("a"))
	s := open(t, cfg)
	ended := h.pull(t.Context(), s, "app")
	early := awaitEarly(t, cfg, ended, "a")
	list, err := s.Import(t.Context(), archiveOf(t, imagetest.Spec{Name: "other:1", Compression: "zstd", Layers: []imagetest.Layer{earlyLayer("a")}}), "", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	imported := unpacked(t, cfg, "late-a")
	imported = slices.DeleteFunc(imported, func(file string) bool { return filepath.Dir(file) == filepath.Dir(early) })
	if len(imported) != 1 {
		t.Fatalf("the layer of the import is in %v", imported)
	}
	h.send()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	mounted, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "c", ImageID: img.ID()})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(mounted.Path, "late-a")); err != nil || len(data) != earlySize {
		t.Errorf("a container has %d bytes, %v", len(data), err)
	}
	if err := errors.Join(s.Release(t.Context(), "c"), s.Remove(t.Context(), list[0].ID)); err != nil {
		t.Error(err)
	}
	wantNothing(t, s, h.host+"/app:1")
}

// mirrored returns two registries: the first is the mirror of the second, which is docker.io in the configuration.
func mirrored(t *testing.T) (mirror, registry *held, cfg Config) {
	t.Helper()
	mirror, registry, cfg = newHeld(t), newHeld(t), testConfig(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "docker.io"), 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "docker.io", "hosts.toml"), fmt.Appendf(nil, "server = \"http://%s\"\n[host.\"http://%s\"]\n", registry.host, mirror.host))
	cfg.RegistryConfigDirs = []string{dir}
	return mirror, registry, cfg
}

// TestTheMirrorBreaksInTheMiddle: the registry sends the rest, and the helper goes on.
func TestTheMirrorBreaksInTheMiddle(t *testing.T) {
	mirror, registry, cfg := mirrored(t)
	img := mirror.push(t, "library/app", "", earlyLayer("a"))
	registry.pushImage("library/app", img)
	registry.at = 0
	s := open(t, cfg)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), "app:1", image.Auth{}, nil)
		ended <- err
	}()
	early := awaitEarly(t, cfg, ended, "a")
	close(mirror.cut)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	wantFile(t, cfg, early, "a")
	wantSent(t, img.Layers[0], mirror, registry)
	if sent := registry.sent(img.Layers[0].Digest); sent == 0 {
		t.Error("the registry has sent nothing")
	}
	wantNothing(t, s, "app:1")
}

// TestTheMirrorSendsAnotherLayer: nothing of what the helper has made of it is used, whether all of its bytes are those of
// a layer or not.
func TestTheMirrorSendsAnotherLayer(t *testing.T) {
	for name, change := range map[string]func(data []byte){
		"other files": func(data []byte) { copy(data[bytes.Index(data, []byte("here")):], "evil") },
		"no layer":    func(data []byte) { clear(data[earlySize-1000:]) },
	} {
		t.Run(name, func(t *testing.T) {
			mirror, registry, cfg := mirrored(t)
			img := registry.push(t, "library/app", "", earlyLayer("a"))
			mirror.pushImage("library/app", img)
			layer := img.Layers[0].Digest.String()
			mirror.blobs[layer] = bytes.Clone(mirror.blobs[layer])
			change(mirror.blobs[layer])
			registry.send()
			s := open(t, cfg)
			ended := make(chan error, 1)
			go func() {
				_, err := s.Pull(t.Context(), "app:1", image.Auth{}, nil)
				ended <- err
			}()
			wrong := awaitEarly(t, cfg, ended, "a")
			mirror.send()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			for _, file := range unpacked(t, cfg, "early-a") {
				if data, err := os.ReadFile(file); err == nil && file != wrong && string(data) != "here" {
					t.Errorf("the file has %q", data)
				}
			}
			found, err := s.Get(t.Context(), "app:1")
			if err != nil {
				t.Fatal(err)
			}
			mounted, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "c", ImageID: found.ID})
			if err != nil {
				t.Fatal(err)
			}
			if data, err := os.ReadFile(filepath.Join(mounted.Path, "early-a")); err != nil || string(data) != "here" {
				t.Errorf("a container has %q, %v", data, err)
			}
			if err := s.Release(t.Context(), "c"); err != nil {
				t.Error(err)
			}
			wantNothing(t, s, "app:1")
		})
	}
}

// TestWhatWasUnpackedInVainIsRemovedAtOnce: a pull that goes on for long does not need the disk for two copies of a layer.
func TestWhatWasUnpackedInVainIsRemovedAtOnce(t *testing.T) {
	mirror, registry, cfg := mirrored(t)
	img := registry.push(t, "library/app", "", earlyLayer("a"), earlyLayer("b"))
	mirror.pushImage("library/app", img)
	a, b := img.Layers[0].Digest.String(), img.Layers[1].Digest.String()
	delete(registry.blobs, a) // the registry holds the other layer
	mirror.blobs[a] = bytes.Clone(mirror.blobs[a])
	copy(mirror.blobs[a][bytes.Index(mirror.blobs[a], []byte("here")):], "evil")
	mirror.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if filepath.Base(req.URL.Path) == b {
			http.NotFound(w, req)
			return true
		}
		return mirror.intercept(w, req)
	}
	s := open(t, cfg)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), "app:1", image.Auth{}, nil)
		ended <- err
	}()
	wrong := awaitEarly(t, cfg, ended, "a")
	awaitEarly(t, cfg, ended, "b")
	mirror.send()
	awaitPull(t, ended, "what has come from the mirror is removed, and the layer of the registry is unpacked", func() bool {
		files := unpacked(t, cfg, "late-a")
		return len(files) == 1 && filepath.Dir(files[0]) != filepath.Dir(wrong)
	})
	registry.send()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, file := range unpacked(t, cfg, "early-a") {
		if data, err := os.ReadFile(file); err != nil || string(data) != "here" {
			t.Errorf("the file has %q, %v", data, err)
		}
	}
	wantNothing(t, s, "app:1")
}

// TestLayersThatAreUnpackedEarlyShareATransaction, as all layers of an image do.
func TestLayersThatAreUnpackedEarlyShareATransaction(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	h.push(t, "one", "", earlyLayer("a"))
	h.push(t, "two", "", earlyLayer("b"), earlyLayer("c"))
	open(t, cfg).Close()
	var costs []int
	for name, first := range map[string]string{"one": "a", "two": "b"} {
		h.rest = make(chan struct{})
		before := transactions(t, cfg)
		s := open(t, cfg)
		ended := h.pull(t.Context(), s, name)
		awaitEarly(t, cfg, ended, first)
		if name == "two" {
			awaitEarly(t, cfg, ended, "c")
		}
		h.send()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		s.Close()
		costs = append(costs, transactions(t, cfg)-before)
	}
	if costs[0] != costs[1] {
		t.Errorf("images with one layer and with two cost %d transactions", costs)
	}
}

// TestALayerWithAnotherDigest: what was unpacked of it is removed when the digest of the blob is wrong, also if the files are those
// of the image.
func TestALayerWithAnotherDigest(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	img := h.push(t, "app", "gzip", earlyLayer("a"))
	layer := img.Layers[0].Digest.String()
	h.blobs[layer] = bytes.Clone(h.blobs[layer])
	h.blobs[layer][4] ^= 1 // the time in the header of gzip
	s := open(t, cfg)
	ended := h.pull(t.Context(), s, "app")
	awaitEarly(t, cfg, ended, "a")
	h.send()
	if err := <-ended; !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "digest") {
		t.Errorf("a layer with another digest: %v", err)
	}
	if images, err := s.List(t.Context()); err != nil || len(images) > 0 {
		t.Errorf("images %v, %v", images, err)
	}
	wantNothing(t, s, "")
}

// TestAKilledDaemonTakesTheHelperWithIt: the next start removes what the helper has made, and the next pull continues.
func TestAKilledDaemonTakesTheHelperWithIt(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	img := h.push(t, "app", "", earlyLayer("a"))
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	w := startWorkerWith(t, cfg, pullWorkerArg, "-", out)
	out.Close()
	if _, err := fmt.Fprintf(in, "%s/app:1\n", h.host); err != nil {
		t.Fatal(err)
	}
	awaitEarly(t, cfg, nil, "a")
	if len(helpers(t, cfg)) == 0 {
		t.Error("no helper waits for the rest")
	}
	w.kill()
	awaitPull(t, nil, "the helper has ended", func() bool { return len(helpers(t, cfg)) == 0 })
	s := open(t, cfg)
	pullRest(t, h, s, cfg, img.Layers[0])
	if late := unpacked(t, cfg, "late-a"); len(late) != 1 {
		t.Errorf("the layer is in %v", late)
	}
	wantNothing(t, s, h.host+"/app:1")
}

// TestAStallEndsThePullAndTheHelper: a helper that waits for bytes does not count as progress.
func TestAStallEndsThePullAndTheHelper(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	cfg.NoProgressTimeout = time.Second
	h.push(t, "app", "", earlyLayer("a"), earlyLayer("b"))
	s := open(t, cfg)
	ended := h.pull(t.Context(), s, "app")
	awaitEarly(t, cfg, ended, "a")
	if err := <-ended; !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "sent nothing for 1s") {
		t.Errorf("a pull that stalls: %v", err)
	}
	if pids := helpers(t, cfg); len(pids) > 0 {
		t.Errorf("helpers run after the end of the pull: %v", pids)
	}
	h.send()
	if err := <-h.pull(t.Context(), s, "app"); err != nil {
		t.Error(err)
	}
	wantNothing(t, s, h.host+"/app:1")
}

// TestNothingIsUnpackedBeforeTheAdmission: no byte of a layer is asked for, and no helper starts, while the policy or a
// verifier has not accepted the image.
func TestNothingIsUnpackedBeforeTheAdmission(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	img := h.push(t, "team/app", "", earlyLayer("a"))
	dir := t.TempDir()
	asked, answer := filepath.Join(dir, "asked"), filepath.Join(dir, "answer")
	if err := errors.Join(syscall.Mkfifo(asked, 0o600), syscall.Mkfifo(answer, 0o600)); err != nil {
		t.Fatal(err)
	}
	verifiers := filepath.Join(dir, "verifiers")
	if err := os.Mkdir(verifiers, 0o700); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\ncat > /dev/null\necho asked > %s\nread code < %s\nexit $code\n", asked, answer)
	if err := os.WriteFile(filepath.Join(verifiers, "check"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg.VerifierDir = verifiers
	s := open(t, cfg)
	wantUntouched := func(when string) {
		t.Helper()
		if sent, pids, files := h.sent(img.Layers[0].Digest), helpers(t, cfg), unpacked(t, cfg, "*"); sent > 0 || len(pids)+len(files) > 0 {
			t.Errorf("%s: %d bytes were sent, helpers %v, files %v", when, sent, pids, files)
		}
		for _, request := range h.Requests() {
			if strings.HasSuffix(request, img.Layers[0].Digest.String()) {
				t.Errorf("%s: the registry was asked for the layer", when)
			}
		}
	}
	for _, code := range []string{"1", "0"} {
		ended := h.pull(t.Context(), s, "team/app")
		if _, err := os.ReadFile(asked); err != nil { // until the program writes
			t.Fatal(err)
		}
		wantUntouched("while the program thinks")
		put(t, answer, []byte(code+"\n"))
		if code == "1" {
			refused(t, <-ended, "check rejected image")
			wantUntouched("after the refusal")
			continue
		}
		early := awaitEarly(t, cfg, ended, "a")
		h.send()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		wantFile(t, cfg, early, "a")
	}
	// The rules of policy.json are asked before, as for each pull.
	cfg.PolicyFile = filepath.Join(dir, "policy.json")
	put(t, cfg.PolicyFile, []byte(`{"default": [{"type":"reject"}]}`))
	s.SetPullRules(cfg.PullRules)
	other := h.push(t, "team/other", "", earlyLayer("b"))
	refused(t, <-h.pull(t.Context(), s, "team/other"), "reject")
	if sent := h.sent(other.Layers[0].Digest); sent > 0 || len(unpacked(t, cfg, "early-b")) > 0 {
		t.Errorf("%d bytes of a refused image were sent", sent)
	}
	wantNothing(t, s, h.host+"/team/app:1")
}

// TestAnEncryptedLayerWaitsForItsBlob, and a plain one above it does not.
func TestAnEncryptedLayerWaitsForItsBlob(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	private, public, err := encrypt.ECDSA()
	if err != nil {
		t.Fatal(err)
	}
	plain := build(t, imagetest.Spec{Layers: []imagetest.Layer{earlyLayer("a"), earlyLayer("b")}})
	sealed, err := encrypt.Layer(plain.Layers[0], public)
	if err != nil {
		t.Fatal(err)
	}
	img, err := plain.WithLayers(sealed, plain.Layers[1])
	if err != nil {
		t.Fatal(err)
	}
	h.pushImage("app", img)
	cfg.DecryptionKeysDir = t.TempDir()
	put(t, filepath.Join(cfg.DecryptionKeysDir, "app.pem"), private)
	s := open(t, cfg)
	ended := h.pull(t.Context(), s, "app")
	early := awaitEarly(t, cfg, ended, "b") // its helper starts after that of the layer below, if this one starts
	awaitPull(t, ended, "a part of the encrypted layer is there", func() bool { return h.sent(sealed.Digest) == earlyPart })
	if pids, files := helpers(t, cfg), unpacked(t, cfg, "early-a"); len(pids) != 1 || len(files) > 0 {
		t.Errorf("%d helpers run, want 1; the encrypted layer has %v", len(pids), files)
	}
	h.send()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	wantFile(t, cfg, early, "b")
	if late := unpacked(t, cfg, "late-a"); len(late) != 1 {
		t.Errorf("the encrypted layer is in %v", late)
	}
	wantNothing(t, s, h.host+"/app:1")
}
