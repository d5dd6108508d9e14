//go:build integration

package ocihooks

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/test/harness/hungfs"
)

// A directory that hangs, and a program that does, delay those alone that read them.
func TestHungDirectory(t *testing.T) {
	behind, at := write(t, map[string]string{"program": ""}), filepath.Join(t.TempDir(), "dead")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	disk := hungfs.Mount(t, behind, at)
	healthy := write(t, map[string]string{"x.json": always("x", "prestart")})
	names := write(t, map[string]string{"y.json": `{"version":"1.0.0","hook":{"path":"` + at + `/program"},"when":{"always":true},"stages":["prestart"]}`})
	var r Reader
	disk.Hang()
	hung := make(chan struct{}, 2)
	for _, dirs := range [][]string{{healthy, at}, {names}} {
		go func() {
			r.Read(dirs)
			hung <- struct{}{}
		}()
	}
	time.Sleep(50 * time.Millisecond) // until they are in the kernel
	read := make(chan Hooks, 1)
	go func() {
		hooks, _ := r.Read([]string{healthy})
		read <- hooks
	}()
	select {
	case hooks := <-read:
		if len(hooks) != 1 {
			t.Errorf("%d hooks of a healthy directory", len(hooks))
		}
	case <-time.After(5 * time.Second):
		t.Error("a healthy directory waits for one that hangs")
	}
	if len(hung) > 0 {
		t.Error("the others did not hang")
	}
	disk.Answer()
	for range 2 {
		<-hung
	}
}
