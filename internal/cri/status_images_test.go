package cri

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/image"
)

// faultyImages is a store that reports lost data.
type faultyImages struct {
	image.Store
	faults, setAside []string
}

func (f *faultyImages) Faults() []string   { return f.faults }
func (f *faultyImages) SetAside() []string { return f.setAside }

// TestStatusOfADamagedImageStore: the status shows what is lost, and what lies in the quarantine. The store is intact without
// losses, and the node stays ready.
func TestStatusOfADamagedImageStore(t *testing.T) {
	images := &faultyImages{Store: noImages()}
	c := runtimeapi.NewRuntimeServiceClient(client(t, &fakePods{info: &engine.Info{}}, images, nil))
	for _, is := range []struct {
		faults, setAside []string
		intact           bool
		reason, message  string
	}{
		{nil, nil, true, "", ""},
		{[]string{"an image is lost"}, nil, false, "ImagesLost", "an image is lost"},
		{[]string{"an image is lost"}, []string{"files are in the quarantine"}, false, "ImagesLost", "an image is lost; files are in the quarantine"},
		{nil, []string{"files are in the quarantine"}, true, "SetAside", "files are in the quarantine"},
	} {
		images.faults, images.setAside = is.faults, is.setAside
		resp, err := c.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		conditions := map[string]*runtimeapi.RuntimeCondition{}
		for _, condition := range resp.Status.Conditions {
			conditions[condition.Type] = condition
		}
		if got := conditions["ImageStoreIntact"]; got == nil || got.Status != is.intact || got.Reason != is.reason || got.Message != is.message {
			t.Errorf("%+v: %v", is, got)
		}
		if !conditions[runtimeapi.RuntimeReady].Status || !conditions[runtimeapi.NetworkReady].Status {
			t.Errorf("the node is not ready: %v", resp.Status.Conditions)
		}
	}
}
