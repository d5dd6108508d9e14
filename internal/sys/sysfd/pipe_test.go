package sysfd_test

import (
	"errors"
	"os"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

func TestOutputPipeOutlivesItsReader(t *testing.T) {
	reader, container, err := sysfd.OutputPipe(sysfd.Owner{UID: os.Getuid(), GID: os.Getgid()})
	if err != nil {
		t.Fatal(err)
	}
	defer container.Close()
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	// No reader: a one-directional writer would get EPIPE here.
	if _, err := container.WriteString("last words"); err != nil {
		t.Fatalf("write without a reader: %v", err)
	}
	again, err := sysfd.ReopenPipe(container, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	buf := make([]byte, 64)
	n, err := again.Read(buf)
	if err != nil || string(buf[:n]) != "last words" {
		t.Fatalf("read %q, %v", buf[:n], err)
	}
}

func TestInputPipeEnds(t *testing.T) {
	container, writer, err := sysfd.InputPipe(sysfd.Owner{})
	if err != nil {
		t.Fatal(err)
	}
	defer container.Close()
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := container.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("read = %d, %v, want the end of the input", n, err)
	}
}

func TestPipeIDRefusesOthers(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := sysfd.PipeID(f); !errors.Is(err, errs.Invalid) {
		t.Errorf("plain file: %v, want Invalid", err)
	}
}
