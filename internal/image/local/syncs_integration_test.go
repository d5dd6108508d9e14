//go:build integration

package local

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
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
