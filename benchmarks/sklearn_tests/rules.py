"""Which of scikit-learn's tests are about behaviour that the federated estimators share, and which are not.

A test counts unless one of `REASONS` applies to it; that a test fits neither estimator is seen while it runs, the
other reasons are given here, test by test. A key is the name of a test, or "name @ parameter=value" for those of
its cases that have a parameter which begins so. Excluded tests do not count even where they would pass.
"""

REASONS = {
    "fits neither": "fits neither Ridge nor LogisticRegression, but RidgeCV, RidgeClassifier or another class",
    "skipped": "is skipped or expected to fail with scikit-learn's own estimators too, for want of another array "
    "library, or since a solver does not take sparse rows",
    "other class": "is about LogisticRegressionCV or RidgeCV, with the other as reference",
    "private": "calls a private function or method of scikit-learn",
    "solver": "is about one solver of scikit-learn, its messages, its limit of iterations, what it refuses",
    "l1": "is about the l1 or elastic-net penalty, which is another model",
    "option": "is about a deprecated parameter, or one without counterpart (dual, n_jobs, callbacks)",
}

EXCLUDED = {
    "test_ridge": {
        "test_n_iter": "solver",  # rounds are planned, there is no limit of iterations
        "test_ridge_fit_intercept_sparse_error": "solver",
        "test_ridge_fit_intercept_sparse_sag": "solver",
        "test_ridge_positive_error_test": "solver",
        "test_lbfgs_solver_error": "solver",
        "test_sparse_cg_max_iter": "solver",
        "test_ridge_cv_individual_penalties": "other class",
        "test_ridge_gcv_vs_ridge_loo_cv": "other class",
        "test_dense_sparse @ test_func=_test_ridge_loo": "other class",
        "test_dense_sparse @ test_func=_test_ridge_cv": "other class",
        "test_dense_sparse @ test_func=_test_ridge_classifiers": "other class",
        "test_dense_sparse @ test_func=_test_tolerance": "solver",
        "test_array_api_error_and_warnings_for_solver_parameter": "solver",
        "test_ridgecv_sample_weight": "other class",
    },
    "test_logistic": {
        "test_check_solver_option": "solver",
        "test_liblinear_dual_random_state": "solver",
        "test_max_iter": "solver",
        "test_zero_max_iter": "solver",
        "test_warm_start @ warm_start=False": "solver",  # one iteration is to be too few
        "test_warm_start_newton_solver": "solver",
        "test_dtype_match @ solver=liblinear": "solver",
        "test_large_sparse_matrix @ solver=liblinear": "solver",
        "test_large_sparse_matrix @ solver=sag": "solver",
        "test_liblinear_with_large_values": "solver",
        "test_liblinear_not_stuck": "solver",
        "test_liblinear_multiclass_raises": "solver",
        "test_newton_cholesky_fallback_to_lbfgs": "solver",
        "test_elasticnet_l1_ratio_err_helpful": "l1",
        "test_sample_and_class_weight_equivalence_liblinear": "l1",
        "test_logreg_l1": "l1",
        "test_saga_vs_liblinear @ l1_ratio=1": "l1",
        "test_elastic_net_coeffs": "l1",
        "test_elastic_net_l1_l2_equivalence": "l1",
        "test_elastic_net_vs_l1_l2": "l1",
        "test_LogisticRegression_elastic_net_objective": "l1",
        "test_LogisticRegressionCV_GridSearchCV_elastic_net": "l1",
        "test_l1_ratio_non_elasticnet": "l1",
        "test_elastic_net_versus_sgd": "l1",
        "test_logisticregression_liblinear_sample_weight @ params={'l1_ratio': 1": "l1",
        "test_l1_ratio_None_deprecated": "option",
        "test_lr_penalty_l1ratio_incompatible": "option",
        "test_penalty_none": "option",
        "test_penalty_deprecated": "option",
        "test_logisticregression_warns_with_n_jobs": "option",
        "test_logistic_regression_callback_support": "option",
        "test_logistic_regression_callback_fitted_estimator": "option",
        "test_logistic_regression_callback_support_warning": "option",
        "test_consistency_path": "private",
        "test_logreg_predict_proba_multinomial": "private",
        "test_logistic_cv": "other class",
        "test_logistic_cv_multinomial_score": "other class",
        "test_multinomial_cv_iris": "other class",
        "test_logistic_cv_folds_with_classes_missing": "other class",
        "test_logistic_regression_cv_refit": "other class",
        "test_LogisticRegressionCV_on_folds": "other class",
        "test_scores_attribute_layout_elasticnet": "other class",
    },
}

FAILURES = {
    "test_ridge": {
        "test_ridge_regression_unpenalized": "without a penalty, columns that depend on each other are refused "
        "and named; scikit-learn takes the coefficients of least norm",
        "test_ridge_regression_unpenalized_hstacked_X": "the same, since every column is there twice",
        "test_ridge_regression_unpenalized_vstacked_X": "the same, with more columns than rows",
        "test_regularization_limits_ridge": "the same, since 1e-16 is no penalty for more columns than rows",
    },
    "test_logistic": {
        "test_c_inf_no_warning": "without a penalty, classes that columns separate are refused and named; "
        "scikit-learn stops somewhere on the way to infinity",
        "test_multinomial_logistic_regression_string_inputs": "a class whose rows all have weight 0 is refused "
        "and named, since its intercept would be minus infinity",
    },
}


def reason(file: str, test: str, parameters: list[str]) -> str | None:
    """Why a case does not count, a key of REASONS; None where it counts as far as these lists say."""
    for key, why in EXCLUDED[file].items():
        name, _, wanted = key.partition(" @ ")
        if name == test and (not wanted or any(each.startswith(wanted) for each in parameters)):
            return why
    return None
