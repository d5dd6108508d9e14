package cri

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// faultyImages is a store that reports lost data.
type faultyImages struct {
	image.Store
	faults, setAside []string
	lost             map[string][]string
}

func (f *faultyImages) Faults() []string   { return f.faults }
func (f *faultyImages) SetAside() []string { return f.setAside }

func (f *faultyImages) LostNames(platform, ref string) []string {
	if f.lost == nil {
		return nil
	}
	return f.lost[platform+" "+ref]
}

// TestStatusOfALostImage: the verbose answer has the names of an image that the store has lost. CRI's own fields are those of an
// image that is not present.
func TestStatusOfALostImage(t *testing.T) {
	images := &faultyImages{Store: &fakeImages{getErr: errs.NotFound}, lost: map[string][]string{" gone:1": {"docker.io/library/gone:1"}}}
	c := runtimeapi.NewImageServiceClient(client(t, &fakePods{info: &engine.Info{}}, images, nil))
	for _, is := range []struct {
		ref     string
		verbose bool
		want    string
	}{{"gone:1", true, `["docker.io/library/gone:1"]`}, {"gone:1", false, ""}, {"other:1", true, ""}} {
		resp, err := c.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: is.ref}, Verbose: is.verbose})
		if err != nil || resp.GetImage() != nil || resp.GetInfo()[image.InfoLostNames] != is.want {
			t.Errorf("%+v: %v, %v", is, resp, err)
		}
	}
}

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
