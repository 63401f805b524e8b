"""`from_sklearn` gives probes that score as the estimators do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Perceptron, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from undercurrent.core import SavedProbe, from_sklearn
from undercurrent.errors import ProbingTypeError, ProbingValueError

HIDDEN = 24
POINT = {"layer": 4, "tensor_type": "residual_stream"}


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """600 rows of 3 overlapping classes, float32."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, 600)
    rows = rng.standard_normal((600, HIDDEN)) + 0.6 * rng.standard_normal((3, HIDDEN))[labels]
    return (rows * rng.uniform(0.5, 2.0, HIDDEN) + rng.standard_normal(HIDDEN)).astype(np.float32), labels


def calibrated(estimator: Any, method: str) -> CalibratedClassifierCV:
    return CalibratedClassifierCV(estimator, method=method, ensemble=False, cv=3)


BINARY = {
    "logistic": LogisticRegression(),
    "no intercept": LogisticRegression(fit_intercept=False),
    "scaled": make_pipeline(StandardScaler(), LogisticRegression()),
    "only centred": make_pipeline(StandardScaler(with_std=False), LogisticRegression()),
    "scaled twice": make_pipeline(StandardScaler(), "passthrough", StandardScaler(), LogisticRegression()),
    "sgd": make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", alpha=0.1, random_state=0)),
    "mlp": MLPClassifier((12,), max_iter=60, random_state=0),
    "scaled mlp": make_pipeline(StandardScaler(), MLPClassifier((8, 6), "tanh", max_iter=60, random_state=0)),
    "logistic mlp": MLPClassifier((8,), "logistic", max_iter=60, random_state=0),
    "sigmoid of logistic": calibrated(LogisticRegression(), "sigmoid"),
    "isotonic of logistic": calibrated(LogisticRegression(), "isotonic"),
    "temperature of logistic": calibrated(LogisticRegression(), "temperature"),
    "sigmoid of svm": calibrated(LinearSVC(), "sigmoid"),
    "isotonic of scaled svm": calibrated(make_pipeline(StandardScaler(), LinearSVC()), "isotonic"),
    "sigmoid of mlp": calibrated(MLPClassifier((6,), max_iter=60, random_state=0), "sigmoid"),
    "isotonic of mlp": calibrated(MLPClassifier((6,), max_iter=60, random_state=0), "isotonic"),
    "temperature of mlp": calibrated(MLPClassifier((6,), max_iter=60, random_state=0), "temperature"),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", BINARY)
def test_binary_estimator_and_its_probe_give_equal_chances(name: str, data: tuple[np.ndarray, np.ndarray]) -> None:
    rows, labels = data
    estimator = BINARY[name].fit(rows[:400], labels[:400] == 1)
    probe = from_sklearn(estimator, **POINT)

    expected = estimator.predict_proba(rows[400:])[:, 1]
    # Where an isotonic line is steep, it magnifies the float32 rounding of scikit-learn's own network.
    bound = 1e-5 if name == "isotonic of mlp" else 1e-6
    assert np.abs(probe.score(rows[400:]) - expected).max() <= bound
    assert np.abs(probe.score(rows[400:], target="False") - (1 - expected)).max() <= bound
    assert probe.labels == ("False", "True")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "estimator",
    [make_pipeline(StandardScaler(), LogisticRegression()), MLPClassifier((9,), max_iter=60, random_state=1)],
)
def test_softmax_estimator_and_its_probe_give_equal_chances(
    estimator: Any, data: tuple[np.ndarray, np.ndarray]
) -> None:
    rows, labels = data
    estimator.fit(rows[:400], np.array(["calm", "rude", "unsafe"])[labels[:400]])
    probe = from_sklearn(estimator, **POINT)

    expected = estimator.predict_proba(rows[400:])
    classes = probe.scorer().margins(rows[400:]).classes
    assert classes is not None
    assert np.abs(classes - expected).max() <= 1e-6
    assert np.abs(probe.score(rows[400:], target="rude") - expected[:, 1]).max() <= 1e-6
    assert np.abs(probe.score(rows[400:]) - (1 - expected[:, 0])).max() <= 1e-6


def test_bare_svm_scores_its_margin_with_zero_as_threshold(data: tuple[np.ndarray, np.ndarray]) -> None:
    rows, labels = data
    svm = LinearSVC().fit(rows, labels == 1)
    probe = from_sklearn(svm, **POINT)

    assert np.abs(probe.score(rows) - svm.decision_function(rows)).max() <= 1e-5
    assert (probe.threshold, probe.is_probability) == (0.0, False)


def test_names_model_and_facts_are_kept(data: tuple[np.ndarray, np.ndarray]) -> None:
    rows, labels = data
    estimator = LogisticRegression().fit(rows, labels == 1)
    probe = from_sklearn(
        estimator,
        **POINT,
        model="m",
        labels=["fine", "rude"],
        threshold=0.8,
        aggregation="mean",
        training={"texts": 600},
    )

    assert (probe.model, probe.labels, probe.threshold) == ("m", ("fine", "rude"), 0.8)
    assert dict(probe.training) == {"estimator": "LogisticRegression", "texts": 600}


def fitted(estimator: Any, data: tuple[np.ndarray, np.ndarray], *, classes: int = 2) -> Any:
    rows, labels = data
    return estimator.fit(rows, labels == 1 if classes == 2 else labels)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda _: LogisticRegression(), ProbingTypeError, "not fitted"),
        (lambda _: LogisticRegression, ProbingTypeError, "the class LogisticRegression"),
        (lambda data: fitted(KMeans(2, n_init=1), data), ProbingTypeError, "no saved probe says what a KMeans does"),
        (
            lambda data: fitted(make_pipeline(PCA(3), LogisticRegression()), data),
            ProbingTypeError,
            "a Pipeline's PCA cannot be folded",
        ),
        (
            lambda data: fitted(CalibratedClassifierCV(LinearSVC(), cv=3, ensemble=True), data),
            ProbingValueError,
            "averages 3 classifiers",
        ),
        (
            lambda data: fitted(calibrated(LogisticRegression(), "isotonic"), data, classes=3),
            ProbingValueError,
            "of 3 classes cannot be said by one probe",
        ),
        (lambda data: fitted(Perceptron(), data, classes=3), ProbingValueError, "margins that are no log odds"),
        (
            lambda data: fitted(SGDClassifier(loss="log_loss"), data, classes=3),
            ProbingValueError,
            "one against the rest",
        ),
    ],
)
def test_estimator_that_is_no_probe_is_refused(
    make: Any, error: type[Exception], message: str, data: tuple[np.ndarray, np.ndarray]
) -> None:
    with pytest.raises(error, match=message):
        from_sklearn(make(data), **POINT)


def test_import_of_an_estimator_loads_no_sklearn() -> None:
    program = """
import sys, types
import numpy as np
from undercurrent.core import from_sklearn
fitted = {'coef_': np.ones((1, 3)), 'intercept_': np.zeros(1), 'classes_': np.array([0, 1]), 'predict_proba': None}
twin = types.SimpleNamespace(**fitted)
assert from_sklearn(twin, layer=0, tensor_type="mlp_out").hidden_size == 3
assert not {"sklearn", "scipy", "torch"} & set(sys.modules)
"""
    answer = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_probe_of_an_estimator_is_a_saved_probe(data: tuple[np.ndarray, np.ndarray]) -> None:
    assert isinstance(from_sklearn(fitted(LogisticRegression(), data), **POINT), SavedProbe)
