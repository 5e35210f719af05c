package replica

// Damaged tells the replica that its store has lost a part of its data: it serves nothing any more, and says why. The
// driver calls it when a read met damage; one that the replica finds itself it does not need to be told.
func (r *Replica) Damaged(why string) { r.quarantine(why) }
