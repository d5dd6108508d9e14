//go:build integration

package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
)

// transactions is how many transactions the databases of a closed store have had.
func transactions(t *testing.T, cfg Config) (n int) {
	t.Helper()
	for _, file := range []string{"metadata.db", "snapshots/metadata.db"} {
		db, err := bbolt.Open(filepath.Join(cfg.Root, file), 0o600, &bbolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		err = db.View(func(tx *bbolt.Tx) error {
			n += tx.ID()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// manyLayers is an image with n layers that no other image has.
func manyLayers(t *testing.T, name string, n int) *imagetest.Image {
	spec := imagetest.Spec{Compression: "gzip"}
	for i := range n {
		path := fmt.Sprint(name, "-", i)
		spec.Layers = append(spec.Layers, imagetest.Layer{{Path: path, Content: []byte(strings.Repeat(path, 100))}})
	}
	return build(t, spec)
}

// A transaction costs two syncs of the disk. So those of a pull must not be a multiple of its layers.
func TestTransactionsOfAPullDoNotGrowWithItsLayers(t *testing.T) {
	cfg := testConfig(t)
	r := &imagetest.Registry{}
	host := serve(t, r)
	cost := func(name string, layers int) int {
		r.Push(name, "1", manyLayers(t, name, layers))
		open(t, cfg).Close()
		before := transactions(t, cfg)
		s := open(t, cfg)
		if _, err := s.Pull(context.Background(), host+"/"+name+":1", image.Auth{}, nil); err != nil {
			t.Fatal(err)
		}
		s.Close()
		return transactions(t, cfg) - before
	}
	const layers = 60
	few, many := cost("few", 1), cost("many", layers+1)
	t.Logf("%d transactions for 1 layer, %d for %d", few, many, layers+1)
	if more := many - few; more > layers/10 {
		t.Errorf("%d more layers cost %d more transactions, want %d at most", layers, more, layers/10)
	}
}

// TestAnImageThatWaitsForALayerGetsItAtOnce: the layers of an image are committed together, but not while another image waits
// for one of them.
func TestAnImageThatWaitsForALayerGetsItAtOnce(t *testing.T) {
	ctx := context.Background()
	cfg := testConfig(t)
	shared := imagetest.Layer{{Path: "shared", Content: []byte(strings.Repeat("shared", 1000))}}
	slow := build(t, imagetest.Spec{Layers: []imagetest.Layer{shared, {{Path: "slow", Content: []byte(strings.Repeat("slow", 1000))}}}})
	quick := build(t, imagetest.Spec{Layers: []imagetest.Layer{shared, {{Path: "quick", Content: []byte(strings.Repeat("quick", 1000))}}}})
	asked, let := make(chan struct{}), make(chan struct{})
	r := &imagetest.Registry{Intercept: func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, slow.Layers[1].Digest.String()) {
			close(asked)
			<-let
		}
		return false
	}}
	host := serve(t, r)
	r.Push("slow", "1", slow)
	r.Push("quick", "1", quick)
	s := open(t, cfg)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Pull(ctx, host+"/slow:1", image.Auth{}, nil)
		ended <- err
	}()
	<-asked
	awaitPull(t, ended, "the shared layer is unpacked", func() bool {
		files, err := filepath.Glob(filepath.Join(cfg.Root, "snapshots/snapshots/*/fs/shared"))
		return err == nil && len(files) == 1
	})
	patient, cancel := context.WithTimeout(ctx, require.Patience(20*time.Second))
	defer cancel()
	if _, err := s.Pull(patient, host+"/quick:1", image.Auth{}, nil); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		t.Errorf("the slow pull has not waited: %v", err)
	default:
	}
	close(let)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := errors.Join(s.Remove(ctx, host+"/slow:1"), s.Remove(ctx, host+"/quick:1"), s.Close()); err != nil {
		t.Error(err)
	}
	assertEmpty(t, s)
}
