(ns rhumb.jepsen.checker
  "Checks that every test has: that faults took effect, that the cluster was whole at the end, and that no node panicked."
  (:require [jepsen.checker :as checker]))

(defn- evidence
  "Whether the completion of a nemesis shows that its fault had an effect."
  [{:keys [f value]}]
  ; The invocation has the targets, and the completion a map of what was done to each.
  (case (when (map? value) f)
    :start-kill (some (fn [[_ [_ pids]]] (seq pids)) value)
    :start-pause (some (fn [[_ [_ pids]]] (seq pids)) value)
    :stop-partition (pos? (:dropped value 0))
    :stop-clock (pos? (:logged value 0))
    :start-damage (seq (:damaged value))
    :stop-membership (:returned value)
    nil))

(def shows {:kill :start-kill :disk :start-kill :pause :start-pause :partition :stop-partition :clock :stop-clock
            :damage :start-damage :membership :stop-membership})

(defn effects
  "Fails if a fault of the test never had an effect."
  [faults]
  (reify checker/Checker
    (check [_ test history opts]
      (let [nemesis (filter #(= :nemesis (:process %)) history)
            counts (into {} (map (fn [fault]
                                   [fault (count (filter #(and (= (shows fault) (:f %)) (evidence %)) nemesis))]))
                         faults)]
        {:valid? (every? pos? (vals counts)) :effects counts}))))

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

(defn panics []
  (checker/log-file-pattern #"panic:|fatal error:|DATA RACE|broken invariant" "rhumb.log"))
