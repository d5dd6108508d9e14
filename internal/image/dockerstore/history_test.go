package dockerstore

import (
	"testing"

	imageapi "github.com/moby/moby/api/types/image"
)

// TestHistory: the oldest entry comes first, and an entry is without a layer only where the engine's
// sizes leave no other choice.
func TestHistory(t *testing.T) {
	items := []imageapi.HistoryResponseItem{
		{Created: 30, CreatedBy: "COPY b /"}, {Created: 20, CreatedBy: "ENV A=1", Comment: "c"}, {Created: 10, CreatedBy: "COPY a /", Size: 7},
	}
	got := historyOf(items, 1)
	if len(got) != 3 || got[0].CreatedBy != "COPY a /" || got[0].Created.Unix() != 10 || got[1].Comment != "c" || got[2].CreatedBy != "COPY b /" {
		t.Errorf("history %+v", got)
	}
	if got[0].EmptyLayer || !got[1].EmptyLayer || !got[2].EmptyLayer {
		t.Errorf("one layer, of the entry with a size: %+v", got)
	}
	for _, entry := range historyOf(items, 2) { // COPY b / has added an empty file
		if entry.EmptyLayer {
			t.Errorf("%s made no layer, of two layers and one entry with a size", entry.CreatedBy)
		}
	}
}
