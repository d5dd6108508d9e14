//go:build integration

package local

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/encrypt"
)

// secrets is a store with a directory for private keys, and an image that is encrypted for one of them.
type secrets struct {
	*Images
	t        *testing.T
	registry *imagetest.Registry
	host     string
	// key and public are the pair, in PEM; keyFile is where the store finds the private key.
	key, public []byte
	keyFile     string
	// plain is the image as it was built, sealed the same encrypted.
	plain, sealed *imagetest.Image
}

const secretText = "nobody may read this; "

func newSecrets(t *testing.T, compression string, pair func() (private, public []byte, err error)) *secrets {
	t.Helper()
	s := &secrets{t: t, registry: &imagetest.Registry{}}
	s.host = serve(t, s.registry)
	var err error
	if s.key, s.public, err = pair(); err != nil {
		t.Fatal(err)
	}
	s.plain = build(t, imagetest.Spec{Compression: compression, Layers: []imagetest.Layer{
		{{Path: "base", Content: []byte(strings.Repeat(secretText, 1000))}},
		{{Path: "top", Content: []byte(strings.Repeat(secretText, 1000))}, imagetest.Whiteout("base")},
	}})
	s.sealed = s.encrypted()
	s.registry.Push("app", "1", s.sealed)
	cfg := testConfig(t)
	cfg.DecryptionKeysDir = filepath.Join(t.TempDir(), "keys")
	s.keyFile = filepath.Join(cfg.DecryptionKeysDir, "app.pem")
	if err := os.Mkdir(cfg.DecryptionKeysDir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.Images = open(t, cfg)
	return s
}

// encrypted encrypts the image once more, with other random keys.
func (s *secrets) encrypted() *imagetest.Image {
	s.t.Helper()
	sealed, err := encrypt.Image(s.plain, s.public)
	if err != nil {
		s.t.Fatal(err)
	}
	return sealed
}

func (s *secrets) addKey() {
	s.t.Helper()
	if err := os.WriteFile(s.keyFile, s.key, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *secrets) removeKey() {
	s.t.Helper()
	if err := os.Remove(s.keyFile); err != nil {
		s.t.Fatal(err)
	}
}

// pull pulls an image that has the name for this one pull.
func (s *secrets) pull(name string, img *imagetest.Image) error {
	s.registry.Push(name, "1", img)
	_, err := s.Pull(s.t.Context(), s.host+"/"+name+":1", image.Auth{}, nil)
	return err
}

// with is the encrypted image's config with other layers.
func (s *secrets) with(layers ...imagetest.Blob) *imagetest.Image {
	s.t.Helper()
	img, err := s.plain.WithLayers(layers...)
	if err != nil {
		s.t.Fatal(err)
	}
	return img
}

// wantLocked checks that an error says what is encrypted, and what is missing.
func wantLocked(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if !errors.Is(err, errs.State) || slices.ContainsFunc(append(parts, "is encrypted", "image.decryption_keys_dir"), func(part string) bool { return !strings.Contains(err.Error(), part) }) {
		t.Errorf("%s: %v, want %q", what, err, parts)
	}
}

// TestExplainOfAnEncryptedImage: it may not be used without a key, whatever the policy says.
func TestExplainOfAnEncryptedImage(t *testing.T) {
	s := newSecrets(t, "", encrypt.ECDSA)
	rules := s.cfg.PullRules
	rules.PolicyFile = filepath.Join(t.TempDir(), "policy.json")
	put(t, rules.PolicyFile, []byte(`{"default": [{"type":"insecureAcceptAnything"}]}`))
	s.SetPullRules(rules)
	try := func() *image.AdmissionTrial {
		t.Helper()
		e, err := s.Explain(t.Context(), image.PullTarget{}, s.host+"/app:1", image.Auth{}, true)
		if err != nil {
			t.Fatal(err)
		}
		return e.Admission.Trial
	}
	if trial := try(); trial.Accepted || !strings.Contains(trial.Fault, "none of the 0 private keys") {
		t.Errorf("without a key: %+v", trial)
	}
	s.addKey()
	if trial := try(); !trial.Accepted {
		t.Errorf("with the key: %+v", trial)
	}
}

// TestPullOfEncryptedImages: a key is used from the next pull on, and without it the pull fails before it downloads a layer,
// also if the node has all layers.
func TestPullOfEncryptedImages(t *testing.T) {
	for compression, pair := range map[string]func() (private, public []byte, err error){"": encrypt.RSA, "gzip": encrypt.ECDSA, "zstd": encrypt.ECDSA} {
		t.Run("compression "+compression, func(t *testing.T) {
			s := newSecrets(t, compression, pair)
			err := s.pull("app", s.sealed)
			wantLocked(t, "without a key", err, s.host+"/app:1", "layer 0 ("+s.sealed.Layers[0].Digest.String(), "none of the 0 private keys")
			for _, layer := range s.sealed.Layers {
				if slices.Contains(s.registry.Requests(), "GET /v2/app/blobs/"+layer.Digest.String()) {
					t.Error("a layer was fetched for nothing")
				}
			}
			if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
				t.Errorf("images %+v, %v", list, err)
			}
			s.addKey()
			if err := s.pull("app", s.sealed); err != nil {
				t.Fatal(err)
			}
			img, err := s.Get(t.Context(), s.host+"/app:1")
			if err != nil || img.ID != s.sealed.ID() || img.Encrypted != 2 {
				t.Fatalf("%+v, %v", img, err)
			}
			m, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "c1", ImageID: img.ID})
			if err != nil {
				t.Fatal(err)
			}
			if data, err := os.ReadFile(filepath.Join(m.Path, "top")); err != nil || !strings.HasPrefix(string(data), secretText) {
				t.Errorf("top: %.40q, %v", data, err)
			}
			if _, err := os.Lstat(filepath.Join(m.Path, "base")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("base: %v", err)
			}
			// The key is exchanged for one that does not fit, and all layers are there.
			other, _, err := pair()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.keyFile, other, 0o600); err != nil {
				t.Fatal(err)
			}
			wantLocked(t, "with another key", s.pull("app", s.sealed), "none of the 1 private keys")
			if err := errors.Join(os.WriteFile(s.keyFile, s.key, 0o600), os.Chmod(s.keyFile, 0o640)); err != nil {
				t.Fatal(err)
			}
			wantLocked(t, "with a key that others can read", s.pull("app", s.sealed), s.keyFile+": has mode 0640")
		})
	}
}

// TestEncryptedLayersNeedTheirContent: the config of an encrypted image is public, so everybody knows what its layers are called. An
// image that merely names them does not get them, also if the node has them.
func TestEncryptedLayersNeedTheirContent(t *testing.T) {
	s := newSecrets(t, "gzip", encrypt.ECDSA)
	s.addKey()
	if err := s.pull("app", s.sealed); err != nil {
		t.Fatal(err)
	}
	bogus := build(t, layersOf(2, "gzip"))
	bogusSealed, err := encrypt.Image(bogus, s.public)
	if err != nil {
		t.Fatal(err)
	}
	// The layers as they are, with secrets that the node opens and that are not theirs.
	stolen := slices.Clone(s.sealed.Layers)
	for i := range stolen {
		stolen[i].Annotations = bogusSealed.Layers[i].Annotations
	}
	attacks := map[string]*imagetest.Image{
		"bogus layers":              s.with(bogus.Layers...),
		"bogus encrypted layers":    s.with(bogusSealed.Layers...),
		"the layers, other secrets": s.with(stolen...),
		"the lowest layer is bogus": s.with(bogus.Layers[0], s.plain.Layers[1]),
		"the top layer is bogus":    s.with(s.plain.Layers[0], bogus.Layers[1]),
		"the layers, not encrypted": s.with(imagetest.NewBlob(s.plain.Layers[0].MediaType, s.sealed.Layers[0].Data), s.plain.Layers[1]),
	}
	refused := func(when string) {
		t.Helper()
		for name, attack := range attacks {
			if err := s.pull("attack", attack); !errors.Is(err, errs.Invalid) {
				t.Errorf("%s, %s: %v", when, name, err)
			}
		}
	}
	refused("at first")
	// After a loss of the databases, too.
	cfg := s.cfg
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	paths := database.Paths{Root: cfg.Root}
	if err := errors.Join(os.Remove(paths.MetadataFile()), os.Remove(paths.SnapshotsFile())); err != nil {
		t.Fatal(err)
	}
	s.Images = open(t, cfg)
	if img, err := s.Get(t.Context(), s.host+"/app:1"); err != nil || img.Encrypted != 2 {
		t.Fatalf("after the rebuild: %+v, %v", img, err)
	}
	refused("after a rebuild")
	// Those who have the content may use it: in the clear, and encrypted once more.
	if err := s.pull("plain", s.plain); err != nil {
		t.Errorf("the same image in the clear: %v", err)
	}
	again := s.encrypted()
	if err := s.pull("again", again); err != nil {
		t.Errorf("the same image, encrypted again: %v", err)
	}
	s.removeKey()
	wantLocked(t, "encrypted again, without a key", s.pull("again", again))
	if err := s.pull("plain", s.plain); err != nil {
		t.Errorf("in the clear, without a key: %v", err)
	}
	delete(attacks, "bogus encrypted layers")
	delete(attacks, "the layers, other secrets")
	refused("without a key")
}

// TestEncryptedArchives: an archive is imported, and exported, with its layers as they are.
func TestEncryptedArchives(t *testing.T) {
	s := newSecrets(t, "zstd", encrypt.RSA)
	s.sealed.Name = "registry.example/app:1"
	var archive bytes.Buffer
	if err := imagetest.OCIArchiveOf(&archive, s.sealed); err != nil {
		t.Fatal(err)
	}
	imported := func(from []byte) error {
		_, err := s.Import(t.Context(), bytes.NewReader(from), "", false, nil)
		return err
	}
	wantLocked(t, "an import without a key", imported(archive.Bytes()), "layer 0", "none of the 0 private keys")
	s.addKey()
	if err := imported(archive.Bytes()); err != nil {
		t.Fatal(err)
	}
	var exported bytes.Buffer
	if err := s.Export(t.Context(), []string{"registry.example/app:1"}, &exported); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(exported.Bytes(), []byte(secretText)) || !bytes.Contains(exported.Bytes(), s.sealed.Layers[1].Data) {
		t.Error("an export does not have the encrypted layers")
	}
	if err := s.Remove(t.Context(), "registry.example/app:1"); err != nil {
		t.Fatal(err)
	}
	if err := imported(exported.Bytes()); err != nil {
		t.Errorf("what was exported: %v", err)
	}
	if img, err := s.Get(t.Context(), "registry.example/app:1"); err != nil || img.ID != s.sealed.ID() {
		t.Errorf("%+v, %v", img, err)
	}
	file := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(file, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := MakePreloaded(t.Context(), filepath.Join(t.TempDir(), "made"), []string{file}, nil, helper, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "image.import_dirs") {
		t.Errorf("a preloaded directory: %v", err)
	}
}

// TestRepairOfEncryptedLayers: what is unpacked again is decrypted again, by a check and by a start. Without the key the check
// says what it could not look at.
func TestRepairOfEncryptedLayers(t *testing.T) {
	s := newSecrets(t, "gzip", encrypt.ECDSA)
	s.addKey()
	if err := s.pull("app", s.sealed); err != nil {
		t.Fatal(err)
	}
	tops, err := filepath.Glob(filepath.Join(s.db.LayersDir(), "*", database.FilesName, "top"))
	if err != nil || len(tops) != 1 {
		t.Fatalf("%q, %v", tops, err)
	}
	check := func(repair bool) *image.CheckReport {
		t.Helper()
		report, err := s.Check(t.Context(), repair, nil)
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	alter(t, tops[0], func(data []byte) []byte { return append(data, "damage"...) })
	s.removeKey()
	report := check(true)
	if len(report.Damage) > 0 || len(report.Unchecked) != 2 || !strings.Contains(strings.Join(report.Unchecked, " "), "none of the 0 private keys") {
		t.Errorf("without the key: %+v", report)
	}
	s.addKey()
	if report = check(true); len(report.Damage) != 1 || !report.Damage[0].Repaired {
		t.Errorf("with the key: %+v", report)
	}
	if report = check(false); len(report.Damage) > 0 || len(report.Notes) > 0 {
		t.Errorf("after the repair: %+v", report)
	}
	cfg := s.cfg
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(filepath.Dir(tops[0]))); err != nil {
		t.Fatal(err)
	}
	s.Images = open(t, cfg)
	if data, err := os.ReadFile(tops[0]); err != nil || !strings.HasPrefix(string(data), secretText) {
		t.Errorf("after a start: %.40q, %v", data, err)
	}
	bogus := build(t, layersOf(2, "gzip"))
	if err := s.pull("attack", s.with(s.plain.Layers[0], bogus.Layers[1])); !errors.Is(err, errs.Invalid) {
		t.Errorf("an image with another top layer: %v", err)
	}
}
