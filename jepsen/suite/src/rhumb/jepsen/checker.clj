(ns rhumb.jepsen.checker
  "Checks that every test has: that faults took effect, that the cluster was whole at the end, and that no node panicked."
  (:require [jepsen.checker :as checker]))

(defn- lost
  "What the disks of the nodes of a kill have lost: maps with the bytes and the files of each."
  [{:keys [value]}]
  (when (map? value) (keep (fn [[_ [_ pids lost]]] (when (seq pids) lost)) value)))

(defn- evidence
  "Whether the completion of a nemesis shows that its fault had an effect."
  [fault {:keys [f value] :as op}]
  ; The invocation has the targets, and the completion a map of what was done to each.
  (case (when (map? value) f)
    ; A kill alone loses nothing that was written.
    :start-kill (if (= :disk fault)
                  (some pos? (map :bytes (lost op)))
                  (some (fn [[_ [_ pids]]] (seq pids)) value))
    :start-pause (some (fn [[_ [_ pids]]] (seq pids)) value)
    :stop-partition (pos? (:dropped value 0))
    :stop-clock (pos? (:logged value 0))
    :start-damage (seq (:damaged value))
    :stop-membership (:returned value)
    nil))

(def shows {:kill :start-kill :disk :start-kill :pause :start-pause :partition :stop-partition :clock :stop-clock
            :damage :start-damage :membership :stop-membership})

(defn effects
  "Fails if a fault of the test never had an effect. Sums up what disks have lost."
  [faults]
  (reify checker/Checker
    (check [_ test history opts]
      (let [nemesis (filter #(= :nemesis (:process %)) history)
            counts (into {} (map (fn [fault]
                                   [fault (count (filter #(and (= (shows fault) (:f %)) (evidence fault %)) nemesis))]))
                         faults)
            losses (mapcat lost (filter #(= :start-kill (:f %)) nemesis))]
        (cond-> {:valid? (every? pos? (vals counts)) :effects counts}
          (some #{:disk} faults)
          (assoc :lost (into {} (map (fn [k] [k (reduce + (map k losses))])) [:bytes :files :database-files])
                 ; A full cache lets writes through to the disk, so that they cannot be lost.
                 :cache-percent-max (reduce max 0 (map :cache-percent losses))))))))

(defn final-reads
  "Fails unless the cluster was whole after the faults, and every final read succeeded in the end."
  []
  (reify checker/Checker
    (check [_ test history opts]
      (let [whole (some #(and (= :whole (:f %)) (= :whole (:value %))) history)
            reads (group-by :type (filter #(and (:final? %) (not= :invoke (:type %))) history))
            failed (concat (:fail reads) (:info reads))]
        {:valid? (boolean (and whole (seq (:ok reads)) (empty? failed)))
         :whole (boolean whole) :read (count (:ok reads)) :failed (mapv #(select-keys % [:index :error]) (take 5 failed))}))))

(defn intact
  "Fails if a node found damage on its disk although the faults do none, whichever they are: a disk that loses what was not synced has lost nothing
  that a node counts on, and the other faults do not touch disks. Copies of other nodes make up for the damage, so that the answers alone would not show a
  write that was acknowledged before it was synced."
  [faults]
  (if (some #{:damage} faults)
    (checker/unbridled-optimism)
    (checker/log-file-pattern #"a file is damaged|has lost synced data" "rhumb.log")))

(defn panics []
  (checker/log-file-pattern #"panic:|fatal error:|DATA RACE|broken invariant" "rhumb.log"))
